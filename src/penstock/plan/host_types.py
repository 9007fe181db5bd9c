"""The types of host control: torch's promotion of scalars, and exact casts of four dtypes.

A dtype is its name. An operand is a 0-d tensor of the program or a Python literal; torch gives a
literal less weight than a tensor, so the two are told apart here. A cast that torch leaves to the
processor (float to int64) is not a host cast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Literal = bool | int | float

#: The dtypes that the host computes, each able to hold the category of those before it.
HOST_DTYPES = ("bool", "int64", "float32", "float64")
_RANK = {dtype: rank for rank, dtype in enumerate(HOST_DTYPES)}
_FLOATS = ("float32", "float64")
_NAME_OR_CALL = re.compile(r"[^\W\d]\w*(\.\w+)*(\([\w, ]*\))?")


def is_float(dtype: str) -> bool:
    """Whether it is a floating host dtype."""
    return dtype in _FLOATS


def literal_dtype(value: object) -> str | None:
    """The dtype of a Python literal, or None where it is not one that the host can hold."""
    if type(value) is bool:
        return "bool"
    if type(value) is int:
        return "int64" if -(2**63) <= value < 2**63 else None
    return "float64" if type(value) is float else None


class Scalars(NamedTuple):
    """The operands of one operation, as far as their types go."""

    dtypes: tuple[str, ...]
    #: Which operands are Python literals; the others are 0-d tensors.
    is_literal: tuple[bool, ...]
    #: torch's default dtype, the dtype of a float literal beside integers.
    default_dtype: str

    def select(self, literal: bool) -> list[str]:
        """The dtypes of the literals, or of the tensors."""
        pairs = zip(self.dtypes, self.is_literal, strict=True)
        return [dtype for dtype, is_literal in pairs if is_literal == literal]


def promote(scalars: Scalars) -> str | None:
    """The dtype in which torch computes on these scalars together; None: not one of the host's."""
    tensors = scalars.select(literal=False)
    literals = [
        scalars.default_dtype if is_float(dtype) else dtype
        for dtype in scalars.select(literal=True)
    ]
    if not _RANK.keys() >= {*tensors, *literals}:
        return None
    tensor, literal = _highest(tensors), _highest(literals)
    if tensor is None or literal is None:
        return tensor or literal
    is_decided = is_float(tensor) or (tensor == "int64" and not is_float(literal))
    return tensor if is_decided else _highest([tensor, literal])


def _highest(dtypes: Sequence[str]) -> str | None:
    return max(dtypes, key=_RANK.__getitem__, default=None)


def can_cast(source: str, target: str) -> bool:
    """Whether the host casts as torch does, for every value."""
    return source in _RANK and target in _RANK and not (is_float(source) and target == "int64")


def cast_source(expression: str, source: str, target: str) -> str:
    """The numpy expression that casts `expression`, an array of dtype `source`, to `target`."""
    if source == target:
        return expression
    if target == "bool":
        return f"{enclose(expression)} != 0"
    return f"{enclose(expression)}.astype({target})"


def enclose(expression: str) -> str:
    """The expression as an operand: in parentheses unless it is a name or a call on names."""
    return expression if _NAME_OR_CALL.fullmatch(expression) else f"({expression})"


def constant(value: Literal, dtype: str) -> Array:
    """The 0-d array of a literal in `dtype`, rounded once, as torch rounds it."""
    own = literal_dtype(value)
    if own is None or not can_cast(own, dtype):
        raise TypeError(f"the literal {value!r} has no host constant of dtype {dtype}")
    with np.errstate(all="ignore"):
        return np.array(value, own).astype(dtype)


def overflows(value: Literal, dtype: str) -> bool:
    """Whether a literal is finite but beyond the largest float32 where that is to hold it."""
    return (
        dtype == "float32"
        and isinstance(value, float)
        and math.isfinite(value)
        and abs(value) > float(np.finfo(np.float32).max)
    )


def constant_name(value: Literal, dtype: str) -> str:
    """A name for `constant(value, dtype)`: equal bits, and only these, share a name."""
    return f"{dtype}_{constant(value, dtype).tobytes()[::-1].hex()}"
