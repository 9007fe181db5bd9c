"""Slices control from data: which values are needed, on the host or as data, and which must be read back.

Control is what predicates, switch indices, element indices and sizes depend on through the closed table of host
operations. A control value that the table cannot compute is computed as data and read back. A whole number or truth
value that is on the host reaches data by an upload; a floating-point value is computed in both places, so that
gradients flow through the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.ir.program import (
    ArrayNew,
    ArrayRead,
    ArraySize,
    ArrayWrite,
    Branch,
    Call,
    Captured,
    Constant,
    Element,
    ForEach,
    Loop,
    Node,
    Operand,
    RandomKey,
    Size,
    TorchCall,
    Value,
)
from penstock.ir.types import TensorType
from penstock.passes.flow import Definition, Flow
from penstock.plan.host_calls import bind
from penstock.plan.host_operation import HostOp, emit
from penstock.plan.host_operation import Operand as Typed

HOST_SCALARS = ("int64", "bool", "float32", "float64")
WHOLE = ("int64", "bool")


@dataclass(slots=True)
class Slices:
    """Where each root value is needed."""

    flow: Flow
    default_dtype: str
    uniform: set[Value] = field(default_factory=set)
    controllable: set[Value] = field(default_factory=set)
    live: set[Value] = field(default_factory=set)
    host: set[Value] = field(default_factory=set)
    read: set[Value] = field(default_factory=set)
    data: set[Value] = field(default_factory=set)

    def is_uploaded(self, value: Value) -> bool:
        """Whether data gets this value from the host."""
        value = self.flow.root(value)
        if value in self.read or value not in self.host:
            return False
        return _dtype(value) in WHOLE and value.type.shape == ()  # type: ignore[union-attr]


def slice_control(flow: Flow, default_dtype: str) -> Slices:
    """Decide for every value whether it is uniform, control, data, or several of these."""
    slices = Slices(flow, default_dtype)
    _find_uniform(slices)
    _find_controllable(slices)
    _find_live(slices)
    _find_host(slices)
    _keep_counters(slices)
    _find_data(slices)
    return slices


def host_call(node: Node, default_dtype: str) -> tuple[HostOp, tuple[Value | object, ...]] | None:
    """The host operation that equals this torch call, with its operands; None: it belongs in a block."""
    call = node.operation
    if not isinstance(call, TorchCall) or len(node.outputs) != 1:
        return None
    bound = bind(call.name, call.args, dict(call.kwargs))
    if bound is None:
        return None
    operands = tuple(
        node.inputs[item.index] if isinstance(item, Operand) else item for item in bound.operands
    )
    if not all(map(_is_host_operand, operands)):
        return None
    typed = [Typed("x", _dtype(x)) if isinstance(x, Value) else x for x in operands]
    emitted = emit(bound.op, typed, default_dtype)
    return (bound.op, operands) if emitted and emitted.dtype == _dtype(node.outputs[0]) else None


def _is_host_operand(item: object) -> bool:
    if isinstance(item, Value):
        return isinstance(item.type, TensorType) and item.type.is_scalar
    return isinstance(item, int | float | bool)


def _dtype(value: Value) -> str:
    return value.type.dtype if isinstance(value.type, TensorType) else "array"


def _nodes(flow: Flow) -> Iterator[Node]:
    for function in flow.program.functions:
        yield from function.body.walk()


def _find_uniform(slices: Slices) -> None:
    root = slices.flow.root
    for _ in range(2):  # values of a callee's body may be roots of values that come earlier
        for node in _nodes(slices.flow):
            match node.operation:
                case Captured() | Constant():
                    slices.uniform.update(node.outputs)
                case TorchCall() if all(root(value) in slices.uniform for value in node.inputs):
                    slices.uniform.update(node.outputs)


def _find_controllable(slices: Slices) -> None:
    """Optimistic fixpoint: every value of a fitting type is control until an operation says no."""
    flow = slices.flow
    entry = set(flow.program.entry.body.inputs)
    candidates = {value for value in flow.definitions if _fits_host(value)}
    is_changed = True
    while is_changed:
        kept = {
            value
            for value in candidates
            if value in entry or _stays_controllable(slices, value, candidates)
        }
        is_changed = len(kept) < len(candidates)
        candidates = kept
    slices.controllable = candidates


def _fits_host(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    if kind.is_scalar:
        return kind.dtype in HOST_SCALARS
    return kind.is_sequence and len(kind.shape) == 1 and kind.dtype in WHOLE


def _stays_controllable(slices: Slices, value: Value, candidates: set[Value]) -> bool:
    flow = slices.flow
    if value in flow.sources:
        return all(source in candidates for source in flow.sources[value])
    definition = flow.definitions[value]
    node = definition.node
    if node is None:
        return True
    if not definition.is_output:  # an element of a for-each
        return node.inputs[definition.index] in candidates
    match node.operation:
        case Constant() | Size() | ArraySize() | RandomKey():
            return True
        case Captured():
            return value.type.is_scalar  # type: ignore[union-attr]
        case Element():
            return all(item in candidates for item in node.inputs)
        case TorchCall():
            call = host_call(node, slices.default_dtype)
            return call is not None and all(
                item in candidates for item in call[1] if isinstance(item, Value)
            )
        case _:
            return False


def _spread(start: list[Value], marked: set[Value], following: Callable[[Value], Iterator[Value]]) -> None:
    work = list(start)
    while work:
        value = work.pop()
        if value in marked:
            continue
        marked.add(value)
        work.extend(following(value))


def _find_live(slices: Slices) -> None:
    flow = slices.flow

    def following(value: Value) -> Iterator[Value]:
        yield from flow.sources.get(value, ())
        definition = flow.definitions[value]
        if definition.node is not None:
            yield from _ruled_by(definition.node, definition)

    _spread(list(flow.program.entry.body.outputs), slices.live, following)


def _ruled_by(node: Node, definition: Definition) -> Iterator[Value]:
    """What must be known for this value of the node, besides what is copied into it."""
    match node.operation:
        case Branch():
            yield node.inputs[0]
        case Loop(condition=condition):
            yield condition.outputs[0]
        case ForEach(body=body):
            yield from node.inputs
            if definition.is_output:
                yield body.outputs[definition.index]
        case Call():
            return
        case _:
            yield from node.inputs


def _control_uses(node: Node) -> Iterator[Value]:
    match node.operation:
        case Branch():
            yield node.inputs[0]
        case Loop(condition=condition):
            yield condition.outputs[0]
        case Element() | ArrayRead() | ArrayWrite():
            yield node.inputs[1]
        case ArrayNew():
            yield node.inputs[0]
        case TorchCall(sizes=sizes):
            for index in sizes:
                yield node.inputs[index]


def _find_host(slices: Slices) -> None:
    flow = slices.flow
    starts = [
        flow.root(value)
        for node in _nodes(flow)
        if _is_live(slices, node)
        for value in _control_uses(node)
    ]
    starts += [
        node.outputs[0]
        for node in _nodes(flow)
        if isinstance(node.operation, RandomKey) and _is_live(slices, node)
    ]

    def following(value: Value) -> Iterator[Value]:
        if value not in slices.controllable:
            slices.read.add(value)
            return
        for source in flow.sources.get(value, ()):
            yield flow.root(source)
        definition = flow.definitions[value]
        if definition.node is None:
            return
        if not definition.is_output:
            if isinstance(definition.node.operation, ForEach):
                yield flow.root(definition.node.inputs[definition.index])
            return
        match definition.node.operation:
            case TorchCall() | Element():
                for item in definition.node.inputs:
                    yield flow.root(item)

    _spread(starts, slices.host, following)


def _keep_counters(slices: Slices) -> None:
    """Whole numbers that come from control alone stay on the host, even where only data reads them."""
    flow = slices.flow
    found = {
        value
        for value in slices.controllable & slices.live
        if flow.root(value) is value and value not in slices.uniform and _is_counter(value)
    }
    is_changed = True
    while is_changed:
        kept = {value for value in found if _comes_from_control(slices, value, found)}
        is_changed = len(kept) < len(found)
        found = kept
    slices.host |= found


def _is_counter(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_scalar and _dtype(value) in WHOLE


def _comes_from_control(slices: Slices, value: Value, found: set[Value]) -> bool:
    flow = slices.flow
    if value in slices.host:
        return True
    if value in flow.sources:
        inputs = tuple(flow.sources[value])
    else:
        node = flow.definitions[value].node
        if node is None or not isinstance(node.operation, TorchCall):
            return False
        inputs = node.inputs
    return all(_is_control(slices, flow.root(item), found) for item in inputs)


def _is_control(slices: Slices, root: Value, found: set[Value]) -> bool:
    if root in slices.host or root in found:
        return root not in slices.read
    definition = slices.flow.definitions[root]
    return definition.node is not None and isinstance(definition.node.operation, Constant)


def _is_live(slices: Slices, node: Node) -> bool:
    return any(value in slices.live for value in node.outputs)


def _find_data(slices: Slices) -> None:
    flow = slices.flow
    starts = [flow.root(value) for value in flow.program.entry.body.outputs]
    starts = [value for value in starts if not slices.is_uploaded(value)]
    starts += list(slices.read)

    def wanted(value: Value) -> Iterator[Value]:
        root = flow.root(value)
        if not slices.is_uploaded(root):
            yield root

    def following(value: Value) -> Iterator[Value]:
        for source in flow.sources.get(value, ()):
            yield from wanted(source)
        definition = flow.definitions[value]
        if definition.node is None:
            return
        for item in _data_inputs(definition.node, definition):
            yield from wanted(item)

    _spread(starts, slices.data, following)
    for node in _nodes(flow):  # a size needs the sequence itself, where no host table has it
        if isinstance(node.operation, Size | ArraySize | ForEach) and _is_live(slices, node):
            missing = [item for item in node.inputs if flow.root(item) not in slices.host]
            _spread([flow.root(item) for item in missing], slices.data, following)


def _data_inputs(node: Node, definition: Definition) -> Iterator[Value]:
    match node.operation:
        case Branch() | Loop() | Call():
            return
        case Element() | ArrayRead():
            yield node.inputs[0]
        case ArrayWrite():
            yield node.inputs[0]
            yield node.inputs[2]
        case ArrayNew():
            return
        case ForEach(body=body):
            if definition.is_output:
                yield body.outputs[definition.index]
                yield from node.inputs
            else:
                yield node.inputs[definition.index]
        case TorchCall(sizes=sizes):
            for index, item in enumerate(node.inputs):
                if index not in sizes:
                    yield item
        case _:
            yield from node.inputs
