"""Which whole numbers of a trace are certain to be equal: pure expressions of the same values.

`start[i]` written twice is two nodes with one value. Sizes are compared by this, so that slices by
the same bounds are known to be equally long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ir.program import Constant, Element, Node, Operation, Size, TorchCall, Value
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

#: The value that stands for all that are equal to it, by operation, type and inputs.
Known = dict[tuple[str, str, tuple[Value, ...]], Value]

_PURE = (Constant, Element, Size, TorchCall)
#: How far expressions are followed.
_DEPTH = 16


def representative(tracer: Tracer, value: Value) -> Value:
    """The same value for all whole numbers that are certain to be equal."""
    return _find(value, _definitions(tracer), tracer.worlds.known_numbers, {}, _DEPTH)


def _definitions(tracer: Tracer) -> dict[Value, Node]:
    """The nodes that define the values in sight."""
    found: dict[Value, Node] = {}
    scope = tracer.scope
    while True:
        nodes = [*scope.function.prologue, *scope.nodes] if scope.parent is None else scope.nodes
        found |= {node.outputs[0]: node for node in nodes if len(node.outputs) == 1}
        if scope.parent is None:
            return found
        scope = scope.parent


def _find(
    value: Value,
    definitions: dict[Value, Node],
    known: Known,
    found: dict[Value, Value],
    depth: int,
) -> Value:
    node = definitions.get(value)
    if node is None or not depth or not _is_pure_number(node.operation, value):
        return value
    if value not in found:
        inputs = tuple(_find(item, definitions, known, found, depth - 1) for item in node.inputs)
        # The text tells 1 from True and 1.0, which compare equal.
        key = (repr(node.operation), str(value.type), inputs)
        found[value] = known.setdefault(key, value)
    return found[value]


def _is_pure_number(operation: Operation, value: Value) -> bool:
    is_number = isinstance(value.type, TensorType) and value.type.is_scalar
    return is_number and isinstance(operation, _PURE)
