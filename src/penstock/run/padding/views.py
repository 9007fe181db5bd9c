"""Rules for views: the same entries, in dimensions that are split, joined, added or reordered.

A dimension is a product of factors, some of which are dynamic; it can be cut along them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.sizes import Size
from penstock.run.batched.steps import Step
from penstock.run.padding.ragged import (
    Factors,
    Frame,
    Ragged,
    Unpaddable,
    is_padded,
    plain,
    product,
)

aten = torch.ops.aten


def view(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Dimensions are split and joined along their factors."""
    value: Ragged = args[0]
    dims = regroup([f for factors in value.dims for f in factors], step.tensor.shape)
    if dims is None:
        raise Unpaddable(operator_name(step.target), "cuts a dynamic dimension into others")
    shape = [frame.size(size) for size in step.tensor.shape]
    zero = frozenset(range(len(dims))) if set(value.padded) <= value.zero else frozenset()
    return Ragged(value.tensor.reshape(shape), dims, _padded_of(dims, zero), value.is_finite)


def regroup(factors: Sequence[Size], shape: Sequence[Size]) -> tuple[Factors, ...] | None:
    """The factors as the dimensions of another shape; None where they do not fit."""
    remaining = [factor for factor in factors if factor != 1]
    dims: list[Factors] = []
    for size in shape:
        taken: list[Size] = []
        while product(tuple(taken)) != size:
            if not remaining:
                return None
            factor = remaining.pop(0)
            part = _part(tuple(taken), factor, size)
            taken.append(part)
            if part != factor:
                assert isinstance(factor, int)
                assert isinstance(part, int)
                remaining.insert(0, factor // part)
        dims.append(plain(tuple(taken)))
    return tuple(dims) if not remaining else None


def _part(taken: Factors, factor: Size, size: Size) -> Size:
    """As much of a factor as makes up the size, or all of it."""
    if not isinstance(factor, int):
        return factor
    divisors = (n for n in range(1, factor) if factor % n == 0)
    return next((n for n in divisors if product((*taken, n)) == size), factor)


def _padded_of(dims: Sequence[Factors], among: frozenset[int]) -> frozenset[int]:
    return frozenset(k for k in among if is_padded(dims[k]))


def unsqueeze(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """A dimension of size 1."""
    value, dim = args
    dim %= len(value.dims) + 1
    order = [*range(dim), None, *range(dim, len(value.dims))]
    return reordered(value, value.tensor.unsqueeze(dim), order)


def squeeze(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Without dimensions of size 1; a dynamic one is none of them."""
    value: Ragged = args[0]
    rank = len(value.dims)
    named = args[1] if len(args) > 1 else range(rank)
    chosen = {dim % rank for dim in ([named] if isinstance(named, int) else named)}
    gone = [k for k in sorted(chosen) if not value.dims[k] and value.tensor.shape[k] == 1]
    order = [k for k in range(rank) if k not in gone]
    return reordered(value, value.tensor.squeeze(gone), order)


def permute(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Dimensions in another order."""
    value: Ragged = args[0]
    order = list(range(len(value.dims)))
    if step.target is aten.permute.default:
        order = [dim % len(order) for dim in args[1]]
    elif len(order) > 1:
        first, second = args[1:] if len(args) > 2 else (0, 1)
        order[first], order[second] = order[second], order[first]
    return reordered(value, value.tensor.permute(order), order)


def reordered(value: Ragged, tensor: torch.Tensor, order: Sequence[int | None]) -> Ragged:
    """Dimensions of a value, by number, and new ones (None)."""
    dims = tuple(() if k is None else value.dims[k] for k in order)
    zero = frozenset(place for place, k in enumerate(order) if k in value.zero)
    return Ragged(tensor, dims, zero, value.is_finite)


def expand(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """The same entries along new dimensions."""
    value: Ragged = args[0]
    shape = step.tensor.shape
    first = len(shape) - len(value.dims)
    dims = [plain((size,)) for size in shape[:first]]
    dims += [known or plain((size,)) for known, size in zip(value.dims, shape[first:])]
    tensor = value.tensor.expand([frame.size(size) for size in shape])
    return Ragged(tensor, tuple(dims), frozenset(k + first for k in value.zero), value.is_finite)
