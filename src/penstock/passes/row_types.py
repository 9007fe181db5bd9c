"""Types of operands in row-wise arithmetic: small static shapes, and torch's promotion of dtypes.

Tensors with dimensions come before 0-d tensors, these before Python numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from penstock.ir.program import Value
from penstock.ir.types import TensorType
from penstock.passes.row_operations import ANY, FLOAT

Number: TypeAlias = bool | int | float
Item: TypeAlias = Value | bool | int | float


def is_small(value: Value, most: int) -> bool:
    """Whether native code can hold the value: of a static and small shape."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype not in ANY:
        return False
    return not kind.is_dynamic and count_elements(value) <= most


def device_of(values: Iterable[Value]) -> str | None:
    """Where a computation on these values runs: numbers of the host go to what they meet. None
    where there are several such places.
    """
    kinds = (value.type for value in values)
    away = {kind.device for kind in kinds if isinstance(kind, TensorType)} - {"cpu"}
    if len(away) > 1:
        return None
    return away.pop() if away else "cpu"


def shape_of(item: Item) -> tuple[int, ...]:
    """The static shape of a value; a number has none."""
    if not isinstance(item, Value) or not isinstance(item.type, TensorType):
        return ()
    return tuple(size for size in item.type.shape if isinstance(size, int))


def count_elements(value: Value) -> int:
    """How many scalars a value is."""
    count = 1
    for size in shape_of(value):
        count *= size
    return count


def dtype_of(value: Value) -> str:
    """The dtype of a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that operands of these shapes have together; None: there is none."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [set(column) - {1} for column in zip(*padded, strict=True)]
    if any(len(distinct) > 1 for distinct in sizes):
        return None
    return tuple(distinct.pop() if distinct else 1 for distinct in sizes)


_RANK = {dtype: rank for rank, dtype in enumerate(ANY)}


def promote(items: Sequence[Item], default_dtype: str) -> str | None:
    """The dtype in which torch computes on these operands together."""
    tensors = [item for item in items if isinstance(item, Value)]
    with_dimensions = _highest([dtype_of(item) for item in tensors if shape_of(item)])
    scalars = _highest([dtype_of(item) for item in tensors if not shape_of(item)])
    numbers = _highest([_number_dtype(x, default_dtype) for x in items if not isinstance(x, Value)])
    return _combine(with_dimensions, _combine(scalars, numbers))


def _number_dtype(number: Number, default_dtype: str) -> str:
    if isinstance(number, bool):
        return "bool"
    return "int64" if isinstance(number, int) else default_dtype


def _highest(dtypes: Sequence[str]) -> str | None:
    return max(dtypes, key=_RANK.__getitem__, default=None)


def _combine(first: str | None, second: str | None) -> str | None:
    """The dtype of two groups of operands, the first of which weighs more."""
    if first is None or second is None:
        return first or second
    if first in FLOAT or (first != "bool" and second not in FLOAT):
        return first
    return _highest([first, second])
