"""Which loops can run as a whole on their device, all rows together until the last one is done.

The condition is computed on the device, so the host would have to read it in every iteration. Rows
that are done go on computing, and what they compute is thrown away: so the table is closed, and has
nothing that could fail on any value, as an index out of range or a division by zero would.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.ir.program import Captured, Constant, Loop, Node, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.passes.rowwise import LAST_DIMENSIONS, POINTWISE

#: Calls that make one tensor of others, whatever is in them.
_OTHERS = frozenset(
    """
    addmm all amax amin any argmax argmin baddbmm bmm cat chunk cumsum dot einsum expand flatten
    follow log_softmax logsumexp max mean min mv norm outer permute prod reshape softmax split
    squeeze stack std sum t tile transpose unbind unsqueeze var view
    """.split()  # noqa: SIM905 - a table of words
)

#: Calls that whole numbers can make fail.
_DIVISIONS = frozenset(["floor_divide", "remainder", "div", "__floordiv__", "__mod__"])

CALLS = (POINTWISE | LAST_DIMENSIONS | _OTHERS) - {"embedding"}


def is_whole_loop(node: Node, nodes: Iterable[Node]) -> bool:
    """Whether a loop, with all nodes in it, is straight torch calls of the table on tensors of
    static shapes.
    """
    if not isinstance(node.operation, Loop):
        return False
    predicate = node.operation.condition.outputs[0].type
    is_truth = isinstance(predicate, TensorType) and predicate.dtype == "bool"
    inside = [item for item in nodes if item is not node]
    return is_truth and all(map(_is_static, node.inputs)) and all(map(_is_straight, inside))


def _is_straight(node: Node) -> bool:
    if not all(map(_is_static, (*node.inputs, *node.outputs))):
        return False
    match node.operation:
        case Constant() | Captured():
            return True
        case TorchCall(name=full_name, sizes=sizes, autocast=autocast):
            name = full_name.rsplit(".", 1)[-1]
            is_safe = name not in _DIVISIONS or _is_floating(node.outputs[0])
            return name in CALLS and is_safe and not sizes and not autocast
        case _:
            return False


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.is_dynamic


def _is_floating(value: Value) -> bool:
    return isinstance(value.type, TensorType) and "float" in value.type.dtype
