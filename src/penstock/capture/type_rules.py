"""Questions about program types: which one covers two others, and which can live on the host."""

from __future__ import annotations

from penstock.capture.worlds import Worlds
from penstock.ir.types import ArrayType, TensorType, Type


def join_types(worlds: Worlds, left: Type, right: Type) -> Type | None:
    """The type that covers both; dynamic dimensions that differ get a fresh symbol."""
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        if left.element is None or right.element is None:
            return ArrayType(left.element or right.element)
        if left.element.is_sequence != right.element.is_sequence:
            return None  # elements of the one are stored otherwise than those of the other
        element = join_types(worlds, left.element, right.element)
        return ArrayType(element) if isinstance(element, TensorType) else None
    if not isinstance(left, TensorType) or not isinstance(right, TensorType):
        return None
    if (left.dtype, left.device) != (right.dtype, right.device):
        return None
    if len(left.shape) != len(right.shape):
        return None
    shape = []
    for one, other in zip(left.shape, right.shape, strict=True):
        if isinstance(one, int) and isinstance(other, int) and one != other:
            return None
        shape.append(one if one == other else worlds.fresh_symbol())
    return TensorType(left.dtype, tuple(shape), left.device)


def is_control_type(type_: TensorType) -> bool:
    """Whether values of that type can live on the host: whole numbers and truth values."""
    return type_.is_scalar and type_.dtype in ("int64", "int32", "int16", "int8", "uint8", "bool")
