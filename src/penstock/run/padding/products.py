"""Rules for products: of two operands that are contracted over padding, one has zeros there."""

from __future__ import annotations

from typing import Any

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.steps import Step
from penstock.run.padding.pointwise import broadcast
from penstock.run.padding.ragged import Factors, Frame, Ragged, Unpaddable, is_padded

#: For each product: how many of its arguments come before the factors, and the contracted
#: dimension of each factor.
LAYOUTS = {
    "mm": (0, 1, 0),
    "bmm": (0, 2, 1),
    "mv": (0, 1, 0),
    "dot": (0, 0, 0),
    "addmm": (1, 1, 0),
    "addmv": (1, 1, 0),
    "baddbmm": (1, 2, 1),
}


def multiply(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """A product of two factors, perhaps added to a third value."""
    name = operator_name(step.target)
    first, inner_left, inner_right = LAYOUTS[name]
    left, right = (frame.finite(item) for item in args[first : first + 2])
    contracted = left.dims[inner_left]
    if contracted != right.dims[inner_right] and (
        is_padded(contracted) or is_padded(right.dims[inner_right])
    ):
        raise Unpaddable(name, "contracts dimensions that are laid out differently")
    if is_padded(contracted) and inner_left not in left.zero and inner_right not in right.zero:
        if left.tensor.numel() <= right.tensor.numel():
            left = frame.fill(left, [inner_left], 0)
        else:
            right = frame.fill(right, [inner_right], 0)
    dims = _outer(left, right, inner_left, inner_right, name)
    if not first:
        return Ragged(step.target(left.tensor, right.tensor, **kwargs), dims)
    added = frame.finite(args[0])
    made = step.target(added.tensor, left.tensor, right.tensor, **kwargs)
    return Ragged(made, broadcast([added.dims, dims], len(dims), name))


def _outer(
    left: Ragged, right: Ragged, inner_left: int, inner_right: int, name: str
) -> tuple[Factors, ...]:
    """The dimensions of a product. Its padding need not be zero where that of a factor is: the
    other one may be infinite.
    """
    dims: list[Factors] = []
    batched = name in ("bmm", "baddbmm")
    if batched:
        dims += broadcast([left.dims[:1], right.dims[:1]], 1, name)
    for value, inner in ((left, inner_left), (right, inner_right)):
        dims += [value.dims[k] for k in range(int(batched), len(value.dims)) if k != inner]
    return tuple(dims)
