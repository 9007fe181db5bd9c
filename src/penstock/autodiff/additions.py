"""What becomes of the results of a backward half: for each operand its gradient is added where it
belongs.

Gradients of slots are written if they are the first and only ones; factors of weight gradients are
collected until many rows can be contracted at once. Whether slots have a gradient already is known
from the plan, so all this is prepared once and done in every pass of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.autodiff.contract import Contraction
from penstock.autodiff.way_back import Add, Adding
from penstock.plan.schedule import (
    Integers,
    Picks,
    Shared,
    Span,
    slots_of,
)

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.tape import Page


def prepare_additions(
    reversal: Reversal,
    page: Page,
    index: Integers | None,
    places: Sequence[int | Contraction | None],
    masks: Sequence[torch.Tensor | None],
) -> tuple[Adding, ...]:
    """For each operand how its gradient is added, for the rows of its mask where there is one."""
    adds: list[Adding] = []
    for operand, place, mask in zip(page.operands, places, masks, strict=True):
        source = page.launch.operands[operand]
        if isinstance(place, Contraction):
            adds.append(Adding(_collecting(page, operand, place)))
        elif place is not None and isinstance(source, Shared):
            adds.append(Adding(_adding_uniform(source.wire, place)))
        elif place is not None:
            adds.append(_adding(reversal, page, operand, place, index, mask))
    return tuple(adds)


def row_slots(source: Span | Picks, rows: int, index: Integers | None) -> Integers:
    """The slots of some rows of an operand or target."""
    slots = slots_of(source)
    if index is None:
        return slots
    if len(slots) == rows:
        return slots[index]
    picked: Integers = slots.reshape(rows, -1)[index].reshape(-1)
    return picked


def _collecting(page: Page, operand: int, how: Contraction) -> Add:
    source = page.launch.operands[operand]
    assert isinstance(source, Shared)
    wire, key = source.wire, (page.launch.block, operand, source.wire, how.kind, how.shape)

    def collect(reversal: Reversal, results: Sequence[Any]) -> None:
        reversal.collect(key, wire, how, [results[place] for place in how.places])

    return collect


def _adding_uniform(wire: int, place: int) -> Add:
    return lambda reversal, results: reversal.add_uniform(wire, results[place].clone())


def _adding(
    reversal: Reversal,
    page: Page,
    operand: int,
    place: int,
    index: Integers | None,
    mask: torch.Tensor | None,
) -> Adding:
    """How to add the gradient of an operand in slots."""
    source = page.launch.operands[operand]
    assert isinstance(source, Span | Picks)
    number, arena = source.arena, reversal.arena(source.arena)
    chosen = None if mask is None or bool(mask.all()) else mask.nonzero().squeeze(1)
    if chosen is not None:
        index = chosen.numpy() if index is None else index[chosen.numpy()]
    slots = row_slots(source, page.rows, index)
    shape, find = (len(slots), *arena.kind.shape), reversal.finding(page, source, index)
    is_first = len(slots) and arena.take_first(slots)
    put = arena.prepare_write(slots, find) if is_first else arena.prepare_add(slots, find)

    def add(reversal: Reversal, results: Sequence[Any]) -> None:
        values = results[place] if chosen is None else results[place].index_select(0, chosen)
        put(reversal.arena(number), values.reshape(shape))

    return Adding(add, operand, place) if is_first else Adding(add)
