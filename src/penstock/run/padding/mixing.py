"""Rules for operations that bring entries of a dimension together: padding gets the number that
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.sizes import Size
from penstock.run.batched.steps import Step
from penstock.run.padding.pointwise import broadcast
from penstock.run.padding.ragged import (
    Frame,
    Ragged,
    Unpaddable,
    greatest_of,
    is_padded,
    least_of,
    plain,
    product,
    with_defaults,
)

aten = torch.ops.aten

#: What a reduction takes in its padding, for a dtype.
Neutral = Callable[[torch.dtype], float]


def _dims_of(named: Any, rank: int) -> list[int]:
    """The dimensions that an argument names; none stand for all."""
    if named is None or (isinstance(named, Sequence) and not named):
        return list(range(rank))
    return [dim % rank for dim in ([named] if isinstance(named, int) else named)] if rank else []


def _reduced(value: Ragged, gone: Sequence[int], keep: bool, tensor: torch.Tensor) -> Ragged:
    places = [k for k in range(len(value.dims)) if keep or k not in gone]
    return Ragged(tensor, tuple(() if k in gone else value.dims[k] for k in places))


def reduction(
    neutral: Neutral, *, has_dims: bool = True, needs_entries: bool = False
) -> Callable[..., Any]:
    """A rule for `op(x, dims, keepdim)`, or `op(x)`, whose padding is that number."""

    def rule(frame: Frame, step: Step, args: Any, kwargs: Any) -> Any:
        named = args[1] if has_dims and len(args) > 1 else None
        gone = _dims_of(named, len(args[0].dims))
        keep = bool(args[2]) if has_dims and len(args) > 2 else False
        value = _filled(frame, args[0], gone, neutral(args[0].tensor.dtype))
        for dim in gone if needs_entries else ():
            frame.need_entries(value.dims[dim])
        made = step.target(value.tensor, *args[1:], **kwargs)
        if isinstance(made, torch.Tensor):
            return _reduced(value, gone, keep, made)
        return tuple(_reduced(value, gone, keep, each) for each in made)

    return rule


def _filled(frame: Frame, value: Ragged, gone: Sequence[int], constant: float) -> Ragged:
    """A constant where dimensions come together, something finite in other padding."""
    if not set(value.padded) <= set(gone):
        value = frame.finite(value)
    return frame.fill(value, gone, constant)


def zero(dtype: torch.dtype) -> float:
    """The number that changes no sum."""
    return 0


def one(dtype: torch.dtype) -> float:
    """The number that changes no product."""
    return 1


total = reduction(zero)
total_of_all = reduction(zero, has_dims=False)
sum_of_exponentials = reduction(least_of)
greatest = reduction(least_of, needs_entries=True)
greatest_of_all = reduction(least_of, has_dims=False, needs_entries=True)
least = reduction(greatest_of, needs_entries=True)
least_of_all = reduction(greatest_of, has_dims=False, needs_entries=True)
produce = reduction(one)
holds_for_all = reduction(one)
holds_for_all_of_all = reduction(one, has_dims=False)


def place_of(neutral: Neutral) -> Callable[..., Ragged]:
    """A rule for `argmax` and `argmin`."""
    of_dims = reduction(neutral, needs_entries=True)

    def rule(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
        is_flat = len(args) < 2 or args[1] is None
        if is_flat and any(dim > 0 for dim in args[0].padded):
            raise Unpaddable(operator_name(step.target), "counts through a dynamic dimension")
        found: Ragged = of_dims(frame, step, args, kwargs)
        return found

    return rule


def mean(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """The sum, divided by how many entries are valid."""
    gone = _dims_of(args[1] if len(args) > 1 else None, len(args[0].dims))
    keep = bool(args[2]) if len(args) > 2 else False
    value = _filled(frame, args[0], gone, 0)
    tensor = value.tensor.to(step.tensor.dtype)
    tensor = tensor.sum(gone, keep) if gone else tensor
    return _reduced(value, gone, keep, tensor / _count(frame, value, gone).to(tensor.dtype))


def _count(frame: Frame, value: Ragged, dims: Sequence[int]) -> torch.Tensor:
    """How many entries are valid along some dimensions together."""
    device = value.tensor.device
    sizes: list[Size] = [product(value.dims[dim]) for dim in dims]
    counted = torch.ones((), dtype=torch.int64, device=device)
    for size in sizes:
        counted = counted * frame.length(size, device)
    return counted


def variance(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """The mean of squared distances from the mean, corrected."""
    value = frame.finite(args[0])
    gone = _dims_of(args[1] if len(args) > 1 else None, len(value.dims))
    keep, correction = kwargs.get("keepdim", False), kwargs.get("correction")
    count = _count(frame, value, gone).to(value.tensor.dtype)
    centre = frame.fill(value, gone, 0).tensor.sum(gone, True) / count
    apart = frame.fill(Ragged(value.tensor - centre, value.dims), gone, 0)
    divisor = (count - (1 if correction is None else correction)).clamp(min=0)
    return _reduced(value, gone, keep, apart.tensor.square().sum(gone, keep) / divisor)


def norm(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`linalg.vector_norm`: zeros add nothing to a norm of positive order."""
    value, order, named, keep = with_defaults(args, None, 2, None, False)
    if not isinstance(order, int | float) or not 0 < order < float("inf"):
        raise Unpaddable("vector_norm", f"of order {order}")
    gone = _dims_of(named, len(value.dims))
    kept = [dim for dim in value.padded if dim not in gone]
    value = frame.fill(frame.fill(value, gone, 0), kept, 1)
    made = aten.linalg_vector_norm.default(value.tensor, order, gone, keep, **kwargs)
    return _reduced(value, gone, bool(keep), made)


def softmax(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Padding gets no weight; its logarithm is minus infinity."""
    dim = args[1] % len(args[0].dims)
    value = args[0]
    filled = _filled(frame, value, [dim], float("-inf"))
    if operator_name(step.target) != "_safe_softmax":
        frame.need_entries(value.dims[dim])
    made = step.target(filled.tensor, *args[1:], **kwargs)
    if not is_padded(value.dims[dim]):
        return Ragged(made, value.dims)
    if operator_name(step.target) == "_log_softmax":
        return frame.fill(Ragged(made, value.dims, is_finite=False), [dim], 0)
    return Ragged(made, value.dims, frozenset([dim]))


def running(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`cumsum`: what comes after the valid entries does not reach them."""
    value = frame.finite(args[0])
    return Ragged(step.target(value.tensor, *args[1:], **kwargs), value.dims)


def loss(frame: Frame, step: Step, args: Any, kwargs: Any) -> tuple[Ragged, Ragged]:
    """`nll_loss`: targets in the padding are ignored."""
    value, target, weight, reduce, ignored = args
    if any(is_padded(factors) for factors in value.dims[1:]):
        raise Unpaddable("nll_loss", "of dynamically many classes or places")
    value, target = frame.finite(value), frame.fill_all(target, ignored)
    given = [item.tensor if isinstance(item, Ragged) else item for item in (value, target, weight)]
    made, total_weight = step.target(*given, reduce, ignored)
    return Ragged(made, target.dims if reduce == 0 else ()), Ragged(total_weight, ())


#: Where losses of single entries say how these are brought together.
LOSSES = {
    "mse_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "soft_margin_loss": 2,
    "binary_cross_entropy_with_logits": 4,
}


def loss_of_entries(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """The loss of each entry, then the sum or the mean of those that are valid."""
    place = LOSSES[operator_name(step.target)]
    given = [frame.finite(item) if isinstance(item, Ragged) else item for item in args]
    given += [None] * (place - len(given)) + [1] * (place >= len(given))
    reduce, given[place] = given[place], 0
    operands = [item for item in given if isinstance(item, Ragged)]
    dims = broadcast([operand.dims for operand in operands], len(operands[0].dims), "a loss")
    tensors = [item.tensor if isinstance(item, Ragged) else item for item in given]
    each = Ragged(step.target(*tensors, **kwargs), dims)
    if reduce == 0:
        return each
    every = range(len(dims))
    summed = frame.fill(each, every, 0).tensor.sum()
    return Ragged(
        summed / _count(frame, each, every).to(summed.dtype) if reduce == 1 else summed, ()
    )


def normalise(frame: Frame, step: Step, args: Any, kwargs: Any) -> tuple[Ragged, ...]:
    """`layer_norm` over dimensions that are not dynamic."""
    value, shape = frame.finite(args[0]), args[1]
    if any(is_padded(factors) for factors in value.dims[len(value.dims) - len(shape) :]):
        raise Unpaddable("layer_norm", "along a dynamic dimension")
    given = [item.tensor if isinstance(item, Ragged) else item for item in args[2:]]
    made = step.target(value.tensor, shape, *given)
    rest = value.dims[: len(value.dims) - len(shape)] + ((),) * len(shape)
    return (Ragged(made[0], value.dims), *(Ragged(each, rest) for each in made[1:]))


def look_up(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`embedding`: padding looks up entry 0, and leaves it no gradient."""
    weight, index, *options = args
    if any(options[1:3]):
        raise Unpaddable("embedding", "counts how often entries are looked up")
    index = frame.fill_all(index, 0)
    made = step.target(weight.tensor, index.tensor, *options, **kwargs)
    return Ragged(made, (*index.dims, *weight.dims[1:]))


def gather(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`gather` along a dimension that is not dynamic."""
    value, dim, index = args[:3]
    if is_padded(value.dims[dim % len(value.dims)]):
        raise Unpaddable("gather", "reads places of a dynamic dimension")
    index = frame.fill_all(index, 0)
    made = step.target(value.tensor, dim, index.tensor)
    return Ragged(made, index.dims, is_finite=value.is_finite)


def convolve(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """A convolution sees zeros behind the valid entries, as at the end of a sequence."""
    value, weight, *rest = args
    if any(is_padded(factors) for factors in weight.dims) or rest[4]:
        raise Unpaddable("convolution", "with a dynamic kernel, or transposed")
    value = frame.finite(value)
    spatial = [dim for dim in value.padded if dim >= 2]
    if is_padded(value.dims[1]) or any(len(value.dims[dim]) > 1 for dim in spatial):
        raise Unpaddable("convolution", "over dynamically many channels")
    value = frame.fill(value, spatial, 0)
    given = [item.tensor if isinstance(item, Ragged) else item for item in rest]
    made = step.target(value.tensor, weight.tensor, *given)
    shape = step.tensor.shape
    sized = (value.dims[0], *(plain((size,)) for size in shape[1:]))
    return Ragged(made, sized)
