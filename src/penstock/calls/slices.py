"""Slices in the index of a call: those whose size is no simple function of the sizes around it.

`x[a:b]` and `x[:20]` end where the dimension ends. Their size is a minimum, which shows only at the
sizes at hand.
"""

from __future__ import annotations

from typing import Any

from penstock.ir.program import Node, Operand, TorchCall
from penstock.ir.types import TensorType

#: The calls that take an index, as their second argument.
INDEXING = ("torch.Tensor.__getitem__", "penstock.set_item")


def index_items(index: Any) -> tuple[Any, ...]:
    """The items of an index, one for each dimension or so."""
    return index if isinstance(index, tuple) else (index,)


def is_traced(item: slice) -> bool:
    """Whether a bound is an operand."""
    return isinstance(item.start, Operand) or isinstance(item.stop, Operand)


def is_fixed(item: slice) -> bool:
    """Whether plain bounds do more than leave out one element at an end, or keep one."""
    bounds = [bound for bound in (item.start, item.stop) if isinstance(bound, int)]
    return any(abs(bound) > 1 for bound in bounds) or item.step not in (None, 1)


def keeps_one(item: slice) -> bool:
    """Whether plain bounds keep one element at an end, if there is one."""
    bounds = item.start or None, item.stop
    return item.step in (None, 1) and bounds in ((None, 1), (-1, None))


def is_cut(node: Node) -> bool:
    """Whether the node takes or sets a slice that may end where a dimension ends."""
    call = node.operation
    if not isinstance(call, TorchCall) or call.name not in INDEXING:
        return False
    kind = node.inputs[0].type
    is_dynamic = isinstance(kind, TensorType) and kind.is_dynamic
    slices = [item for item in index_items(call.args[1]) if isinstance(item, slice)]
    return any(is_traced(item) or (is_dynamic and is_fixed(item)) for item in slices)
