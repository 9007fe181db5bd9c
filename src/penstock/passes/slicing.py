"""Slices control from data: which values the host needs, which data needs, and which are read back.

Control is what predicates, switch indices, element indices and sizes depend on through the closed
table of host operations. A control value that the table cannot compute is computed as data and read
back. A whole number or truth value that is on the host reaches data by an upload; a floating-point
value is computed in both places, so that gradients flow through the data.
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
    Constant,
    Element,
    ForEach,
    Loop,
    Node,
    RandomKey,
    Size,
    TorchCall,
    Value,
)
from penstock.ir.types import TensorType
from penstock.passes.controllable import (
    WHOLE,
    all_nodes,
    dtype_of,
    find_controllable,
    find_uniform,
)
from penstock.passes.flow import Definition, Flow


@dataclass(slots=True)
class Slices:
    """Where each root value is needed."""

    flow: Flow
    default_dtype: str
    #: The same for all rows.
    uniform: set[Value]
    #: What the host could compute.
    controllable: set[Value]
    #: The roots of what the outputs of the entry depend on.
    live: set[Value] = field(default_factory=set)
    #: What control needs to go on.
    needed: set[Value] = field(default_factory=set)
    #: That, and what stays with control because it comes from control alone.
    host: set[Value] = field(default_factory=set)
    #: What control needs and cannot compute: read back from data.
    read: set[Value] = field(default_factory=set)
    #: What data needs, uploads aside.
    data: set[Value] = field(default_factory=set)

    def is_live(self, node: Node) -> bool:
        """Whether something needs an output of the node that is not another value by a new name."""
        return any(value in self.live for value in node.outputs)

    def has_host_form(self, root: Value) -> bool:
        """Whether control computes this value or is handed it, and does not read it back."""
        return root in self.host and root not in self.read

    def has_slot_form(self, root: Value) -> bool:
        """Whether data computes this value or is handed it, and does not upload it."""
        return root in self.data and not self.is_uploaded(root)

    def is_uploaded(self, value: Value) -> bool:
        """Whether data gets this value from the host."""
        value = self.flow.root(value)
        if value in self.read or value not in self.host:
            return False
        return _is_counter(value)


def slice_control(flow: Flow, default_dtype: str) -> Slices:
    """Decide for every value whether it is uniform, control, data, or several of these."""
    slices = Slices(flow, default_dtype, find_uniform(flow), find_controllable(flow, default_dtype))
    _find_live(slices)
    _find_host(slices)
    slices.needed = set(slices.host)
    _keep_counters(slices)
    _find_data(slices)
    return slices


def _spread(
    start: list[Value], marked: set[Value], following: Callable[[Value], Iterator[Value]]
) -> None:
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
        yield from map(flow.root, flow.sources.get(value, ()))
        definition = flow.definitions[value]
        if definition.node is not None:
            yield from map(flow.root, _ruled_by(definition.node, definition))

    _spread(list(map(flow.root, flow.program.entry.body.outputs)), slices.live, following)


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
        for node in all_nodes(flow)
        if slices.is_live(node)
        for value in _control_uses(node)
    ]
    starts += [
        node.outputs[0]
        for node in all_nodes(flow)
        if isinstance(node.operation, RandomKey) and slices.is_live(node)
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
    """Whole numbers that come from control alone stay on the host, also where only data reads."""
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
    return isinstance(value.type, TensorType) and value.type.is_scalar and dtype_of(value) in WHOLE


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
    for node in all_nodes(flow):  # a size needs the sequence itself, where no host table has it
        if isinstance(node.operation, Size | ArraySize | ForEach) and slices.is_live(node):
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
