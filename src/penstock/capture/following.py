"""Numbers on the host that follow what they are joined with to its device, in branches and loops.

Calls do the same with their operands (`recording.follow_device`). Structure stays on the host until
something wants it elsewhere; tensors of floating-point numbers are where the user put them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.leaf_types import LeafType, StaticLeaf, join, leaf_type
from penstock.capture.recording import record
from penstock.ir.types import TensorType, Type

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def can_follow(type_: TensorType, device: str) -> bool:
    """Whether values of that type go to a device where something else is: numbers, and tensors of
    whole numbers and truth values, that are on the host.
    """
    if type_.device != "cpu" or device == "cpu":
        return False
    return type_.is_scalar or not type_.dtype.startswith(("float", "bfloat", "complex"))


def join_following(
    tracer: Tracer, left: LeafType | StaticLeaf, right: LeafType | StaticLeaf
) -> LeafType | StaticLeaf | None:
    """`join`, where one side may follow the other to its device; None where the types clash."""
    return join(tracer, left, right) or _away(left, right)


def _away(left: Any, right: Any) -> LeafType | None:
    """Of two types that differ in their devices alone the one that the other can follow."""
    kinds = getattr(left, "type", None), getattr(right, "type", None)
    if not all(isinstance(kind, TensorType) for kind in kinds):
        return None
    if left.type.dtype != right.type.dtype or left.type.shape != right.type.shape:
        return None
    if can_follow(left.type, right.type.device):
        return LeafType(right.type)
    return LeafType(left.type) if can_follow(right.type, left.type.device) else None


def placed(tracer: Tracer, leaf: Any, wanted: Type) -> Any:
    """A leaf, on the device of a type where it can follow there."""
    kind = getattr(leaf_type(leaf), "type", None)
    if not isinstance(kind, TensorType) or not isinstance(wanted, TensorType):
        return leaf
    if not can_follow(kind, wanted.device):
        return leaf
    return record(tracer, torch.Tensor.to, (leaf, torch.device(wanted.device)), {})
