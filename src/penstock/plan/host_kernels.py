"""The few host operations that are more than a numpy expression, and the names of generated code.

Checks look at all rows at once and name every row that fails. Floating minimum and maximum are
written out because numpy's own do not choose between 0.0 and -0.0 as torch does. Nothing here
silences numpy's warnings: the caller does, once for a whole control block, with `quiet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.plan.host_types import HOST_DTYPES, Array


class HostOperationError(Exception):
    """A host operation that has no result for some rows.

    `rows` are positions in the arrays of the evaluation; `builtin` is the class torch raises.
    """

    def __init__(self, rows: Array, reason: str, builtin: type[Exception]) -> None:
        super().__init__(f"{reason} (rows {rows[:8].tolist()}, {len(rows)} in all)")
        self.rows = rows
        self.reason = reason
        self.builtin = builtin


def quiet() -> np.errstate:
    """The context of an evaluation: overflow, NaN and 1.0 / 0.0 are values, not warnings."""
    return np.errstate(all="ignore")


def floor_divide(dividend: Array, divisor: Array) -> Array:
    """`dividend // divisor` of int64, refusing a zero divisor."""
    _require_nonzero(dividend, divisor)
    return dividend // divisor


def remainder(dividend: Array, divisor: Array) -> Array:
    """`dividend % divisor` of int64, refusing a zero divisor."""
    _require_nonzero(dividend, divisor)
    return dividend % divisor


def _require_nonzero(dividend: Array, divisor: Array) -> None:
    if np.count_nonzero(divisor) != divisor.size:
        zero, _ = np.broadcast_arrays(divisor == 0, dividend)
        raise HostOperationError(np.flatnonzero(zero), "integer division by zero", RuntimeError)


def float_minimum(left: Array, right: Array) -> Array:
    """The smaller; NaN if either is NaN; `left` where they are equal."""
    return np.where((right < left) | (right != right), right, left)


def float_maximum(left: Array, right: Array) -> Array:
    """The larger; NaN if either is NaN; `left` where they are equal."""
    return np.where((right > left) | (right != right), right, left)


def read_table(flat: Array, base: Array, length: Array, index: Array) -> Array:
    """`table[index]` for each row, whose own table is `flat[base : base + length]`.

    A negative index counts from the end of the row's own table, as in torch.
    """
    # As unsigned numbers, negative indices are too large: one comparison passes the usual rows.
    if np.count_nonzero(index.view(np.uint64) >= length.view(np.uint64)):
        index = _count_from_start(index, length)
    values: Array = flat[base + index]
    return values


def _count_from_start(index: Array, length: Array) -> Array:
    position: Array = index + length * (index < 0)
    outside = (position < 0) | (position >= length)
    if outside.any():
        raise HostOperationError(np.flatnonzero(outside), "index out of range", IndexError)
    return position


#: The globals of generated code. A host dtype is also a name, for casts.
NAMESPACE: Mapping[str, Any] = MappingProxyType(
    {
        **{dtype: np.dtype(dtype) for dtype in HOST_DTYPES},
        "abs": abs,
        "where": np.where,
        "minimum": np.minimum,
        "maximum": np.maximum,
        "float_minimum": float_minimum,
        "float_maximum": float_maximum,
        "floor_divide": floor_divide,
        "remainder": remainder,
        "read_table": read_table,
    }
)
