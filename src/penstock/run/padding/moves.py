"""Rules for operations that move entries: cuts, joins and orders; and for those that make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.lift import AsFloat, Inverse
from penstock.run.batched.sizes import Polynomial, Size
from penstock.run.batched.steps import Step, TensorFact
from penstock.run.padding.ragged import (
    Factors,
    Frame,
    Ragged,
    Unpaddable,
    is_padded,
    plain,
    product,
    with_defaults,
)
from penstock.run.padding.views import reordered

aten = torch.ops.aten


def cut(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """A slice, which may begin where the instance's own length says."""
    value, dim, start, end, skip = with_defaults(args, None, 0, None, None, 1)
    dim %= len(value.dims)
    size, is_static = step.tensor.shape[dim], not is_padded(value.dims[dim])
    if is_static:
        if any(isinstance(item, Polynomial) for item in (start, end, size)):
            raise Unpaddable("slice", "takes as much of a dimension as another is long")
        made = aten.slice.Tensor(value.tensor, dim, start, end, skip)
        dims = (*value.dims[:dim], plain((size,)), *value.dims[dim + 1 :])
        return Ragged(made, dims, value.zero, value.is_finite)
    _require_single(step, value, dim)
    if skip != 1:
        raise Unpaddable("slice", "takes steps along a dynamic dimension")
    start = 0 if start is None else start
    if isinstance(start, int) and start >= 0:
        return _narrowed(value, value.tensor.narrow(dim, start, frame.size(size)), dim, size)
    first = frame.length(start) if isinstance(start, Polynomial) else start
    if isinstance(first, int):
        first = frame.length(value.dims[dim][0]) + first
    places = frame.positions(size, value.tensor.device) + first
    return _narrowed(value, _take(frame, value, dim, places), dim, size)


def _narrowed(value: Ragged, tensor: torch.Tensor, dim: int, size: Size) -> Ragged:
    """Part of a dimension: valid entries may have become padding."""
    dims = (*value.dims[:dim], plain((size,)), *value.dims[dim + 1 :])
    return Ragged(tensor, dims, value.zero - {dim}, is_finite=not tensor.is_floating_point())


def _require_single(step: Step, value: Ragged, dim: int) -> None:
    if len(value.dims[dim]) != 1:
        raise Unpaddable(operator_name(step.target), "cuts a dimension made of several")


def _take(frame: Frame, value: Ragged, dim: int, places: torch.Tensor) -> torch.Tensor:
    """The entries at places that differ from row to row."""
    places = places.clamp(0, max(value.tensor.shape[dim] - 1, 0))
    made: torch.Tensor = aten.index.Tensor(value.tensor, [*[None] * dim, places])
    return made


def select(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """One entry of a dimension; negative places count from the instance's own end."""
    value, dim, place = args
    dim %= len(value.dims)
    order = [k for k in range(len(value.dims)) if k != dim]
    if not is_padded(value.dims[dim]) or (isinstance(place, int) and place >= 0):
        return reordered(value, value.tensor.select(dim, place), order)
    _require_single(step, value, dim)
    if isinstance(place, int):
        index = frame.length(value.dims[dim][0]) + place
    else:
        index = frame.length(place)
    taken = _take(frame, value, dim, index.reshape(1)).select(dim, 0)  # type: ignore[union-attr]
    return reordered(value, taken, order)


def flip(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Entries from the last valid one to the first."""
    value: Ragged = args[0]
    for dim in (k % len(args[0].dims) for k in args[1]):
        if not is_padded(value.dims[dim]):
            value = value.with_tensor(value.tensor.flip(dim))
            continue
        _require_single(step, value, dim)
        size = value.dims[dim][0]
        places = frame.length(size) - 1 - frame.positions(size, value.tensor.device)
        value = _narrowed(value, _take(frame, value, dim, places), dim, size)
    return value


def join(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`cat`: along a dynamic dimension each part follows the valid entries of the one before."""
    parts: list[Ragged] = list(args[0])
    dim = (args[1] if len(args) > 1 else 0) % len(step.tensor.shape)
    parts = [part for part in parts if len(part.dims) == len(step.tensor.shape)]
    rest = _common_dims(parts, dim)
    tensor = torch.cat([part.tensor for part in parts], dim)
    zero = frozenset.intersection(*(part.zero for part in parts)) - {dim}
    is_finite = all(part.is_finite for part in parts)
    if not any(is_padded(part.dims[dim]) for part in parts):
        dims = (*rest[:dim], plain((step.tensor.shape[dim],)), *rest[dim + 1 :])
        return Ragged(tensor, dims, zero, is_finite)
    size = step.tensor.shape[dim]
    whole = Ragged(tensor, rest, zero)
    taken = _take(frame, whole, dim, _joined_places(frame, parts, dim, size))
    dims = (*rest[:dim], plain((size,)), *rest[dim + 1 :])
    return Ragged(taken, dims, zero, is_finite=False)


def _common_dims(parts: Sequence[Ragged], dim: int) -> tuple[Factors, ...]:
    dims = [{part.dims[k] for part in parts} for k in range(len(parts[0].dims))]
    if any(len(each) > 1 for k, each in enumerate(dims) if k != dim):
        raise Unpaddable("cat", "joins dimensions that are laid out differently")
    return tuple(next(iter(each)) for each in dims)


def _joined_places(frame: Frame, parts: Sequence[Ragged], dim: int, size: Size) -> torch.Tensor:
    """For each entry of the joined dimension where it is among the padded parts."""
    positions = frame.positions(size, parts[0].tensor.device)
    places = positions
    ends: torch.Tensor | int = 0
    shift: torch.Tensor | int = 0
    for part in parts[:-1]:
        ends = frame.length(product(part.dims[dim])) + ends
        padding = part.tensor.shape[dim] - frame.length(product(part.dims[dim]))
        shift = padding + shift
        places = torch.where(positions >= ends, positions + shift, places)
    return places


def stack(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Values of one layout along a new dimension."""
    parts: list[Ragged] = list(args[0])
    dim = (args[1] if len(args) > 1 else 0) % len(step.tensor.shape)
    dims = _common_dims(parts, -1)
    zero = frozenset.intersection(*(part.zero for part in parts))
    order = [*range(dim), None, *range(dim, len(dims))]
    tensor = torch.stack([part.tensor for part in parts], dim)
    made = reordered(Ragged(parts[0].tensor, dims, zero), tensor, order)
    sized = tuple(f if k != dim else plain((len(parts),)) for k, f in enumerate(made.dims))
    return Ragged(tensor, sized, made.zero, all(part.is_finite for part in parts))


def pieces(frame: Frame, step: Step, args: Any, kwargs: Any) -> tuple[Ragged, ...]:
    """`split` and its kin, of a dimension that is not dynamic."""
    value: Ragged = args[0]
    at = {"unbind": 1}.get(operator_name(step.target), 2)
    dim = (args[at] if len(args) > at else 0) % len(value.dims)
    if is_padded(value.dims[dim]):
        raise Unpaddable(operator_name(step.target), "cuts a dynamic dimension")
    made = step.target(value.tensor, *args[1:])
    facts = step.fact
    assert isinstance(facts, tuple)
    return tuple(_piece(value, part, dim, fact) for part, fact in zip(made, facts, strict=True))


def _piece(value: Ragged, part: torch.Tensor, dim: int, fact: Any) -> Ragged:
    assert isinstance(fact, TensorFact)
    if len(fact.shape) < len(value.dims):
        return reordered(value, part, [k for k in range(len(value.dims)) if k != dim])
    dims = (*value.dims[:dim], plain((fact.shape[dim],)), *value.dims[dim + 1 :])
    return Ragged(part, dims, value.zero, value.is_finite)


def pad(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """Constants around a dimension: behind the valid entries the padding becomes that constant."""
    value, widths, constant = with_defaults(args, None, None, 0.0)
    if any(not isinstance(width, int) or width < 0 for width in widths):
        raise Unpaddable("pad", "cuts a dynamic dimension")
    changed = [len(value.dims) - 1 - k // 2 for k, width in enumerate(widths) if width]
    value = frame.fill(value, changed, constant)
    dims = tuple(
        plain((step.tensor.shape[k],)) if k in changed else factors
        for k, factors in enumerate(value.dims)
    )
    zero = value.zero if constant == 0 else value.zero - set(changed)
    made = aten.constant_pad_nd.default(value.tensor, widths, constant)
    return Ragged(made, dims, zero, value.is_finite)


def make(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`zeros`, `new_ones` and their kin: made in full size."""
    shape = [frame.size(size) for size in step.tensor.shape]
    place = 1 if isinstance(args[0], Ragged) else 0
    given = [item.tensor if isinstance(item, Ragged) else item for item in args]
    given[place] = shape
    if any(isinstance(item, Polynomial | AsFloat | Inverse) for item in given[place + 1 :]):
        raise Unpaddable(operator_name(step.target), "makes numbers out of a size")
    is_finite = not any(isinstance(i, float) and abs(i) == float("inf") for i in given)
    dims = tuple(plain((size,)) for size in step.tensor.shape)
    return Ragged(step.target(*given, **kwargs), dims, is_finite=is_finite)


def count(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`arange` from a fixed number on."""
    start, *others = args if len(args) > 1 else (0, *args)
    if isinstance(start, Polynomial) or not all(isinstance(i, int) for i in (start, *others[1:])):
        raise Unpaddable("arange", "begins at a size")
    bounds = [frame.size(item) for item in args]
    return Ragged(step.target(*bounds, **kwargs), (plain((step.tensor.shape[0],)),))


def triangle(frame: Frame, step: Step, args: Any, kwargs: Any) -> Ragged:
    """`tril` and `triu` count from the first entries."""
    value: Ragged = args[0]
    return value.with_tensor(step.target(value.tensor, *args[1:]))
