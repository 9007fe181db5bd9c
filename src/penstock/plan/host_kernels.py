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

from penstock.faults import division_by_zero, element_out_of_range
from penstock.plan.faults import HostOperationError
from penstock.plan.host_types import HOST_DTYPES, Array


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
        zero, dividends = np.broadcast_arrays(divisor == 0, dividend)
        rows = np.flatnonzero(zero)
        raise HostOperationError(rows, division_by_zero(dividends.flat[rows[0]]))


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
        index = count_from_start(index, length)
    values: Array = flat[base + index]
    return values


def count_from_start(index: Array, length: Array) -> Array:
    """Indices into sequences of these lengths; negative ones count from the end."""
    position: Array = index + length * (index < 0)
    outside = np.flatnonzero((position < 0) | (position >= length))
    if len(outside):
        first = outside[0]
        raise HostOperationError(outside, element_out_of_range(index[first], length[first]))
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
