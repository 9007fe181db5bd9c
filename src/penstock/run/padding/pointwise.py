"""Rules for operations that work entry by entry: padding stays where it is.

An operation that is not defined, or has no finite derivative, at some finite numbers gets a
harmless number in the padding of its operands first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.lift import AsFloat, Inverse
from penstock.run.batched.sizes import Polynomial
from penstock.run.batched.steps import Step
from penstock.run.padding.ragged import Factors, Frame, Ragged, Unpaddable, is_padded, product

#: Finite at all finite numbers, with finite derivatives.
SAFE = frozenset(
    """
    abs add alias arctan atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp
    clamp_max clamp_min clamp_tensor clone contiguous cos detach detach_copy elu eq erf erfc fill
    floor ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp
    lift_fresh lift_fresh_copy logical_and logical_not logical_or logical_xor lt masked_fill
    maximum minimum mish mul nan_to_num ne neg ones_like positive relu relu6 round rsub selu sgn
    sigmoid sign silu sin softplus square sub tanh threshold _to_copy trunc where zeros_like
    """.split()  # noqa: SIM905 - a table of words
)

#: Not defined everywhere, or with an infinite derivative somewhere: what to put in padding first.
GUARDED = {
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh", "asin", "atanh", "tan"), 0.0),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "div"), 1.0),
    **dict.fromkeys(("pow", "lgamma", "digamma", "acosh", "remainder", "fmod"), 1.0),
    **dict.fromkeys(("floor_divide", "atan2", "xlogy", "addcdiv"), 1.0),
    "logit": 0.5,
    "acos": 0.0,
    "erfinv": 0.0,
}

#: Zero where any operand is.
_PRODUCTS = frozenset(["mul"])

#: Zero where all operands are.
_KEEPING_ZERO = frozenset(
    """
    abs add alias arctan atan celu ceil clone contiguous detach elu erf floor gelu hardswish
    leaky_relu lift_fresh lift_fresh_copy maximum minimum mish mul neg positive relu relu6 round
    selu sgn sign silu sin square sub tanh to trunc zeros_like _to_copy
    """.split()  # noqa: SIM905 - a table of words
)


def apply_pointwise(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """The operation on operands that broadcast against each other."""
    name = operator_name(step.target)
    rank = len(step.tensor.shape)
    operands = [item for item in args if isinstance(item, Ragged)]
    dims = broadcast([operand.dims for operand in operands], rank, name)
    if name in GUARDED and not _is_harmless(name, args):
        first = 1 if name == "div" else 0
        guarded = [_guard(frame, item, dims, GUARDED[name]) for item in args[first:]]
        args = [*args[:first], *guarded]
        operands = [item for item in args if isinstance(item, Ragged)]
    made = call(frame, step, args, kwargs)
    is_finite = all(operand.is_finite for operand in operands) and not _has_infinite(args)
    if name in _PRODUCTS:
        is_finite &= _has_finite_factors(operands, dims)
    return Ragged(made, dims, _zero(name, operands, args, dims), is_finite)


def call(frame: Frame, step: Step, args: Any, kwargs: Any) -> torch.Tensor:
    """Call the operator itself; sizes among its numbers are the instance's own."""
    given = [_number(frame, item, step) for item in args]
    has_lengths = any(type(new) is not type(old) for new, old in zip(given, args))
    target = step.target.overloadpacket if has_lengths else step.target
    tensors = [item.tensor if isinstance(item, Ragged) else item for item in given]
    made: torch.Tensor = target(*tensors, **kwargs)
    return made.to(step.tensor.dtype) if made.dtype != step.tensor.dtype else made


def broadcast(shapes: Sequence[Sequence[Factors]], rank: int, name: str) -> tuple[Factors, ...]:
    """The dimensions of a result of this rank: operands are aligned at their ends."""
    dims: list[Factors] = [()] * rank
    for shape in shapes:
        for place, factors in enumerate(shape, start=rank - len(shape)):
            known = dims[place]
            if not factors:
                continue
            if known and known != factors and (is_padded(known) or is_padded(factors)):
                raise Unpaddable(name, "brings together dimensions that are laid out differently")
            dims[place] = factors
    return tuple(dims)


def _guard(frame: Frame, item: Any, dims: tuple[Factors, ...], harmless: float) -> Any:
    """An operand as long as the result in padded dimensions, with a harmless number there."""
    if not isinstance(item, Ragged) or item.tensor.dtype == torch.bool:
        return item
    own = [1] * (len(dims) - item.tensor.dim()) + list(item.tensor.shape)
    shape = [
        frame.size(product(factors)) if is_padded(factors) else size
        for factors, size in zip(dims, own, strict=True)
    ]
    kept = tuple(
        factors if is_padded(factors) or size > 1 else ()
        for factors, size in zip(dims, shape, strict=True)
    )
    return frame.fill_all(Ragged(item.tensor.expand(shape), kept), harmless)


def _is_harmless(name: str, args: Sequence[Any]) -> bool:
    """Whether a division is by a number, or a power whole and positive."""
    number = args[1] if len(args) > 1 else None
    if name == "div":
        return isinstance(number, int | float) and number != 0
    return name == "pow" and isinstance(number, int | float) and number in (1, 2, 3)


def _number(frame: Frame, item: Any, step: Step) -> Any:
    if not isinstance(item, Polynomial | Inverse | AsFloat):
        return item
    device = step.tensor.device
    length = frame.length(item if isinstance(item, Polynomial) else item.size, device)
    assert isinstance(length, torch.Tensor)
    if isinstance(item, Inverse):
        return Ragged(1.0 / length.to(torch.float64), ())
    return Ragged(length.to(torch.float64) if isinstance(item, AsFloat) else length, ())


def _has_infinite(args: Sequence[Any]) -> bool:
    return any(isinstance(item, float) and abs(item) == float("inf") for item in args)


def _has_finite_factors(operands: Sequence[Ragged], dims: tuple[Factors, ...]) -> bool:
    """Whether no factor can be infinite in the padding of a product: one that is the same all along
    a padded dimension has any numbers there, and zero times infinity is not zero.
    """
    places = [k - len(dims) for k, factors in enumerate(dims) if is_padded(factors)]
    return all(
        operand.is_finite
        and (
            not operand.tensor.is_floating_point()
            or all(-k <= len(operand.dims) and is_padded(operand.dims[k]) for k in places)
        )
        for operand in operands
    )


def _zero(
    name: str, operands: Sequence[Ragged], args: Sequence[Any], dims: tuple[Factors, ...]
) -> frozenset[int]:
    """The dimensions of the result whose padding is zero."""
    rank = len(dims)
    found = [{dim + rank - len(each.dims) for dim in each.zero} for each in operands]
    if name in _PRODUCTS:
        return frozenset().union(*found) if _has_finite_factors(operands, dims) else frozenset()
    has_numbers = any(isinstance(item, int | float) and item != 0 for item in args)
    if name not in _KEEPING_ZERO or (has_numbers and name in ("add", "sub", "maximum")):
        return frozenset()
    return frozenset(set.intersection(*found)) if found else frozenset()
