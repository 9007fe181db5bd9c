"""Slices with traced bounds: the size of `x[a:b]` is known only when the program runs.

Such a size gets a symbol of its own, shared only with slices by equal bounds of dimensions of equal
size: the end of a dimension may cut off one slice and not the other. What the size is where
nothing is cut off (`n` for `x[:n]`) is noted as its expected size; see `worlds`.

A call is tried on a tensor that is long enough for the slice, whatever the bounds are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.slices import index_items, is_fixed, is_traced, keeps_one
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.value_numbers import representative
from penstock.capture.worlds import SizePair
from penstock.ir.program import Operand
from penstock.ir.types import Dimension

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


@dataclass(frozen=True, slots=True)
class TracedCut:
    """One slice with a traced bound in the index of a call."""

    #: Its place among the items of the index.
    item: int
    dimension: int
    step: int
    #: The size of what it takes.
    symbol: str


def find_cuts(tracer: Tracer, index: Any, operands: Sequence[TracedTensor]) -> list[TracedCut]:
    """The slices with traced bounds in the index of the first operand."""
    items = index_items(index)
    if not any(isinstance(item, slice) for item in items):
        return []
    shape = operands[0].traced.value.type.shape  # type: ignore[union-attr]
    used = sum(_dimensions(item, operands) for item in items)
    found, dimension = [], 0
    for place, item in enumerate(items):
        is_slice = isinstance(item, slice) and dimension < len(shape)
        if is_slice and (is_traced(item) or _cuts_a_cut(tracer, item, shape[dimension])):
            step = item.step if isinstance(item.step, int) else 1
            symbol = _symbol(tracer, item, step, shape[dimension], operands)
            found.append(TracedCut(place, dimension, step, symbol))
        is_rest = item is Ellipsis
        dimension += len(shape) - used if is_rest else _dimensions(item, operands)
    return found


def long_enough(fake: torch.Tensor, cuts: Sequence[TracedCut], sizes: Sequence[int]) -> Any:
    """A tensor laid out like `fake`, and longer than each slice; inside a fake mode."""
    shape, strides = list(fake.shape), list(fake.stride())
    order = sorted(range(len(shape)), key=lambda d: (strides[d], -d))
    for cut, size in zip(cuts, sizes, strict=True):
        shape[cut.dimension] = size * cut.step + 1
    step = 1
    for dimension in order:
        if strides[dimension]:
            strides[dimension] = step
            step *= shape[dimension]
    return torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)


def cut_index(index: Any, cuts: Sequence[TracedCut], sizes: Sequence[int]) -> Any:
    """The index with slices that take just as many elements."""
    items = list(index_items(index))
    for cut, size in zip(cuts, sizes, strict=True):
        items[cut.item] = slice(0, size * cut.step, cut.step)
    return tuple(items) if isinstance(index, tuple) else items[0]


def _cuts_a_cut(tracer: Tracer, item: slice, size: Dimension) -> bool:
    """Whether a slice with plain bounds takes a part of one with traced bounds."""
    return tracer.worlds.is_cut(size) and (is_fixed(item) or keeps_one(item))


def _dimensions(item: Any, operands: Sequence[TracedTensor]) -> int:
    """How many dimensions an item of an index takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, Operand):
        fake = operands[item.index].traced.fakes[0]
        return fake.dim() if fake.dtype == torch.bool else 1
    return 1


def _symbol(
    tracer: Tracer, item: slice, step: int, size: Dimension, operands: Sequence[TracedTensor]
) -> str:
    def bound(given: Any) -> Any:
        if isinstance(given, Operand):
            return representative(tracer, operands[given.index].traced.value)
        return given or 0

    def expected(given: Any, default: int, world: int) -> int:
        if isinstance(given, Operand):
            hint = operands[given.index].traced.hint
            assert hint is not None
            return hint[world]
        return default if given is None else given + (given < 0) * whole[world]

    whole = tracer.worlds.pair(size)
    lengths = [
        expected(item.stop, whole[world], world) - expected(item.start, 0, world)
        for world in (0, 1)
    ]
    pair: SizePair = (-(-lengths[0] // step), -(-lengths[1] // step))
    stop = None if item.stop is None else bound(item.stop)
    return tracer.worlds.cut_symbol((size, bound(item.start), stop, step), pair)
