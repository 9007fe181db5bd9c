"""What could be control: which values the closed table of host operations can compute.

A value of a fitting type is controllable until the operation that makes it, or a value copied into
it, says no. Uniform values are found here, too: they depend on constants and captures alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ir.program import (
    ArraySize,
    Captured,
    Constant,
    Element,
    Node,
    Operand,
    RandomKey,
    Size,
    TorchCall,
    Value,
)
from penstock.ir.types import TensorType
from penstock.passes.flow import Flow
from penstock.plan.host_calls import bind
from penstock.plan.host_operation import HostOp, emit
from penstock.plan.host_operation import Operand as Typed

HOST_SCALARS = ("int64", "bool", "float32", "float64")
#: Dtypes whose values are the same wherever they are computed.
WHOLE = ("int64", "bool")

#: What a host operation takes: a value of the program, or a number in it.
HostItem = Value | int | float | bool


def host_call(node: Node, default_dtype: str) -> tuple[HostOp, tuple[HostItem, ...]] | None:
    """The host operation that equals this torch call, with its operands; None if there is none."""
    call = node.operation
    if not isinstance(call, TorchCall) or len(node.outputs) != 1:
        return None
    bound = bind(call.name, call.args, dict(call.kwargs))
    if bound is None:
        return None
    operands: list[HostItem] = []
    for item in bound.operands:
        operand = node.inputs[item.index] if isinstance(item, Operand) else item
        if not isinstance(operand, Value | int | float) or not _is_scalar(operand):
            return None
        operands.append(operand)
    typed = [Typed("x", dtype_of(x)) if isinstance(x, Value) else x for x in operands]
    emitted = emit(bound.op, typed, default_dtype)
    if emitted is None or emitted.dtype != dtype_of(node.outputs[0]):
        return None
    return bound.op, tuple(operands)


def _is_scalar(item: HostItem) -> bool:
    return not isinstance(item, Value) or (
        isinstance(item.type, TensorType) and item.type.is_scalar
    )


def dtype_of(value: Value) -> str:
    """The dtype of a tensor; "array" for an array."""
    return value.type.dtype if isinstance(value.type, TensorType) else "array"


def all_nodes(flow: Flow) -> Iterator[Node]:
    """Every node of the program."""
    for function in flow.program.functions:
        yield from function.body.walk()


def find_uniform(flow: Flow) -> set[Value]:
    """The values that are the same for all rows."""
    uniform: set[Value] = set()
    count = -1
    while count < len(uniform):
        count = len(uniform)
        for node in all_nodes(flow):
            match node.operation:
                case Captured() | Constant():
                    uniform.update(node.outputs)
                case TorchCall() if all(flow.root(value) in uniform for value in node.inputs):
                    uniform.update(node.outputs)
    return uniform


def find_controllable(flow: Flow, default_dtype: str) -> set[Value]:
    """Optimistic fixpoint: every value of a fitting type is control until an operation says no."""
    entry = set(flow.program.entry.body.inputs)
    candidates = {value for value in flow.definitions if _fits_host(value)}
    count = -1
    while count != len(candidates):
        count = len(candidates)
        candidates = {
            value
            for value in candidates
            if value in entry or _stays_controllable(flow, default_dtype, value, candidates)
        }
    return candidates


def _fits_host(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    if kind.is_scalar:
        return kind.dtype in HOST_SCALARS
    return kind.is_sequence and len(kind.shape) == 1 and kind.dtype in WHOLE


def _stays_controllable(
    flow: Flow, default_dtype: str, value: Value, candidates: set[Value]
) -> bool:
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
            return isinstance(value.type, TensorType) and value.type.is_scalar
        case Element():
            return all(item in candidates for item in node.inputs)
        case TorchCall():
            call = host_call(node, default_dtype)
            items = call[1] if call else ()
            return call is not None and all(x in candidates for x in items if isinstance(x, Value))
        case _:
            return False
