"""The rules by which host operations choose the dtypes they compute in.

A rule takes the scalars of a call and says to which dtype each operand is cast, or None where torch
refuses the call or the host does not compute it. Every rule follows torch's eager behaviour; the
tests compare all of them with it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.plan.host_types import Scalars, is_float, promote

CastRule = Callable[[Scalars], tuple[str, ...] | None]


def cast_together(scalars: Scalars) -> tuple[str, ...] | None:
    """All operands to their promoted dtype."""
    common = promote(scalars)
    return None if common is None else (common,) * len(scalars.dtypes)


def cast_tensors_together(scalars: Scalars) -> tuple[str, ...] | None:
    """As `cast_together`, of tensors only: torch takes no number here."""
    return None if any(scalars.is_literal) else cast_together(scalars)


def cast_tensor_first(scalars: Scalars) -> tuple[str, ...] | None:
    """As `cast_together`, of a tensor and what follows: torch takes no number first here."""
    return None if scalars.is_literal[0] else cast_together(scalars)


def cast_numbers_together(scalars: Scalars) -> tuple[str, ...] | None:
    """As `cast_together`, of anything but bools: torch refuses to subtract them."""
    return None if "bool" in scalars.dtypes else cast_together(scalars)


def cast_together_to_float(scalars: Scalars) -> tuple[str, ...] | None:
    """All operands to their promoted dtype, or to the default dtype where that is integral."""
    common = promote(scalars)
    if common is None:
        return None
    return (common if is_float(common) else scalars.default_dtype,) * len(scalars.dtypes)


def cast_tensor_and_factor(scalars: Scalars) -> tuple[str, ...] | None:
    """As `cast_together_to_float`, of one tensor and one number."""
    return cast_together_to_float(scalars) if scalars.is_literal == (False, True) else None


def cast_bounded(scalars: Scalars) -> tuple[str, ...] | None:
    """As `cast_together`, of a tensor and its bounds: all tensors or all numbers."""
    _, *bounds = scalars.is_literal
    return cast_tensor_first(scalars) if len(set(bounds)) == 1 else None


def cast_after_condition(scalars: Scalars) -> tuple[str, ...] | None:
    """A bool tensor, then two operands to their promoted dtype."""
    if scalars.dtypes[0] != "bool" or scalars.is_literal[0]:
        return None
    values = cast_together(
        Scalars(scalars.dtypes[1:], scalars.is_literal[1:], scalars.default_dtype)
    )
    return None if values is None else ("bool", *values)


def cast_bool_to_int(scalars: Scalars) -> tuple[str, ...] | None:
    """A bool to int64, other dtypes as they are."""
    return tuple("int64" if dtype == "bool" else dtype for dtype in scalars.dtypes)


def cast_tensors_to(target: str) -> CastRule:
    """The rule that casts each operand, a tensor, to one dtype."""

    def cast(scalars: Scalars) -> tuple[str, ...] | None:
        return None if any(scalars.is_literal) else (target,) * len(scalars.dtypes)

    return cast
