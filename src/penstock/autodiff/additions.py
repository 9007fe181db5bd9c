"""What becomes of the results of a backward half: for each operand its gradient is added where it
belongs.

Gradients of slots are written if they are the first and only ones; factors of weight gradients are
collected until many rows can be contracted at once. Whether slots have a gradient already is known
from the plan, so all this is found once and done in every pass of the same shape. How to do it
without compiled code is made ready when that is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from penstock.autodiff.contract import Contraction
from penstock.autodiff.gradients import (
    Accumulate,
    GradientArena,
    Slots,
    as_array,
    as_slots,
    count_of,
    finder,
)
from penstock.plan.schedule import Hosted, Integers, Picks, Shared, Span, slots_of
from penstock.run.fused.indices import FindIndex

if TYPE_CHECKING:
    from penstock.autodiff.page import Page
    from penstock.autodiff.reverse import Reversal


#: What a backward half gives, by place.
Results: TypeAlias = Sequence[Any] | Mapping[int, Any]


@dataclass(slots=True, eq=False)
class Addition:
    """What to do with one result of a backward half, or with factors among them."""

    def run(self, reversal: Reversal, results: Results, *, is_own: bool = False) -> None:
        """Do it; `is_own`: nobody else knows of the memory of the results."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Collection(Addition):
    """Factors of a weight gradient wait for those of other launches."""

    key: object
    wire: int
    how: Contraction

    def run(self, reversal: Reversal, results: Results, *, is_own: bool = False) -> None:
        """Add them to the others."""
        factors = [results[place] for place in self.how.places]
        reversal.collect(self.key, self.wire, self.how, factors, is_own=is_own)


@dataclass(slots=True, eq=False)
class UniformAddition(Addition):
    """The gradient of a uniform value."""

    wire: int
    place: int

    def run(self, reversal: Reversal, results: Results, *, is_own: bool = False) -> None:
        """Add it to what is known of it."""
        reversal.add_uniform(self.wire, results[self.place].clone())


@dataclass(slots=True, eq=False)
class SlotAddition(Addition):
    """The gradients of an operand in slots."""

    operand: int
    place: int
    arena: int
    slots: Slots
    #: The slots on their device, or what finds them there.
    where: torch.Tensor | FindIndex
    #: Whether they are the first and only ones: they are written.
    is_first: bool
    #: For each slot whether it has a gradient already, where compiled code may add to it: no slot
    #: occurs twice, also not among those of other operands.
    held: torch.Tensor | None = None
    #: Finds the slots that have no gradient yet, where others have and nothing is held.
    missing: FindIndex | None = None
    #: The rows that have a gradient, where not all have.
    chosen: torch.Tensor | None = None
    put: Accumulate | None = None

    def run(self, reversal: Reversal, results: Results, *, is_own: bool = False) -> None:
        """Write or add them."""
        values = results[self.place]
        if self.chosen is not None:
            values = values.index_select(0, self.chosen)
        arena = reversal.arena(self.arena)
        if self.put is None:
            self.put = self._prepare(arena)
        self.put(arena, values.reshape(count_of(self.slots), *arena.kind.shape))

    def _prepare(self, arena: GradientArena) -> Accumulate:
        find = finder(self.where)
        if self.is_first:
            return arena.prepare_write(self.slots, find)
        missing = self.missing
        if self.held is not None and not self.held.all():
            without = torch.from_numpy(as_array(self.slots) - arena.first)[~self.held]
            missing = finder(without)
        return arena.prepare_add(self.slots, find, missing)


@dataclass(slots=True, eq=False)
class Outline:
    """What halves of one block that give the same, from and to the same arenas, have in common."""

    #: What is done with gradients of uniform values.
    uniform: tuple[Addition, ...]
    #: The operands that have gradients in slots, and the places of these.
    in_slots: tuple[tuple[int, int], ...]
    #: The arenas of these operands, each with their positions among them.
    by_arena: tuple[tuple[int, tuple[int, ...]], ...]
    #: What compiled code takes, by how gradients are written; made and looked up by `fused_half`.
    layouts: dict[object, Any] = field(default_factory=dict)


def find_additions(
    reversal: Reversal,
    page: Page,
    index: Integers | None,
    outline: Outline,
    masks: Sequence[torch.Tensor | None] = (),
) -> tuple[Addition, ...]:
    """For each operand how its gradient is added, for the rows of its mask where there is one."""
    if any(mask is not None for mask in masks):
        told = dict(zip(page.operands, masks, strict=True))
        found = [
            _masked_addition(reversal, page, operand, place, index, told[operand])
            for operand, place in outline.in_slots
        ]
    else:
        found = _slot_additions(reversal, page, index, outline)
    return (*outline.uniform, *found)


def find_outline(
    reversal: Reversal, page: Page, places: Sequence[int | Contraction | None]
) -> Outline:
    """Found once in a pass for all launches of a block that read and write in the same places."""
    launch = page.launch
    read = [0 if type(item) is Hosted else item[0] for item in launch.operands]
    key = (launch.block, id(places), *read, *[item[0] for item in launch.targets])
    found = reversal.outlines.get(key)
    if found is None or found[0] is not places:
        found = reversal.outlines[key] = places, _new_outline(page, places)
    return found[1]


def _new_outline(page: Page, places: Sequence[int | Contraction | None]) -> Outline:
    uniform: list[Addition] = []
    in_slots: list[tuple[int, int]] = []
    for operand, place in zip(page.operands, places, strict=True):
        source = page.launch.operands[operand]
        if isinstance(place, Contraction):
            assert isinstance(source, Shared)
            key = (page.launch.block, operand, source.wire, place.kind, place.shape)
            uniform.append(Collection(key, source.wire, place))
        elif place is not None and isinstance(source, Shared):
            uniform.append(UniformAddition(source.wire, place))
        elif place is not None:
            in_slots.append((operand, place))
    by_arena: dict[int, list[int]] = {}
    for position, (operand, _) in enumerate(in_slots):
        by_arena.setdefault(page.launch.operands[operand].arena, []).append(position)  # type: ignore[union-attr]
    arenas = tuple((number, tuple(some)) for number, some in by_arena.items())
    return Outline(tuple(uniform), tuple(in_slots), arenas)


def _slot_additions(
    reversal: Reversal, page: Page, index: Integers | None, outline: Outline
) -> list[SlotAddition]:
    operands, rows = page.launch.operands, page.launch.rows
    sources: list[Span | Picks] = [operands[k] for k, _ in outline.in_slots]  # type: ignore[misc]
    slots = [row_slots(source, rows, index) for source in sources]
    found: list[Any] = [None] * len(sources)
    for number, positions in outline.by_arena:
        arena = reversal.arena(number)
        # One look at the slots of several operands takes less time than many looks.
        some = [slots[k] for k in positions]
        together = some[0] if len(some) == 1 else np.concatenate([*map(as_array, some)])
        is_apart, is_first = arena.look(together)
        for k, where in zip(positions, some):
            operand, place = outline.in_slots[k]
            place_of = reversal.locate(page, sources[k], index)
            found[k] = addition = SlotAddition(operand, place, number, where, place_of, is_first)
            if not is_first:
                _add_to_others(reversal, arena, addition, is_apart)
    return found


def _add_to_others(
    reversal: Reversal, arena: GradientArena, addition: SlotAddition, is_apart: bool
) -> None:
    """Find out to which slots of an operand a gradient has come before."""
    slots = addition.slots
    if not is_apart:
        is_apart, addition.is_first = arena.look(slots)
        if not addition.is_first:
            addition.missing = _missing(reversal, arena, slots)
    elif arena.device.type != "cpu":  # what is held would have to travel
        addition.is_first = arena.take_first(slots, are_distinct=True)
        if not addition.is_first:
            addition.missing = _missing(reversal, arena, slots)
    else:
        held = arena.hold(slots)
        addition.is_first = held is None
        addition.held = None if held is None else torch.from_numpy(held)


def _missing(reversal: Reversal, arena: GradientArena, slots: Slots) -> FindIndex | None:
    """Finds the slots that have had no gradient yet, if there are some; they have one now."""
    without = arena.take_more(slots)
    return reversal.indices.wait(without, arena.device, arena.first) if len(without) else None


def _masked_addition(
    reversal: Reversal,
    page: Page,
    operand: int,
    place: int,
    index: Integers | None,
    mask: torch.Tensor | None,
) -> SlotAddition:
    """The same for the rows of a mask, where there is one."""
    source = page.launch.operands[operand]
    assert isinstance(source, Span | Picks)
    arena = reversal.arena(source.arena)
    chosen = None if mask is None or bool(mask.all()) else mask.nonzero().squeeze(1)
    if chosen is not None:
        rows = chosen.cpu().numpy()
        index = rows if index is None else index[rows]
    slots, where = row_slots(source, page.rows, index), reversal.locate(page, source, index)
    is_first = arena.take_first(slots)
    addition = SlotAddition(operand, place, source.arena, slots, where, is_first, chosen=chosen)
    if not is_first:
        addition.missing = _missing(reversal, arena, slots)
    return addition


def row_slots(source: Span | Picks, rows: int, index: Integers | None) -> Slots:
    """The slots of some rows (None: all) of an operand or target."""
    if index is None:
        return as_slots(source)
    listed = slots_of(source)
    if len(listed) == rows:
        return listed[index]
    picked: Integers = listed.reshape(rows, -1)[index].reshape(-1)
    return picked
