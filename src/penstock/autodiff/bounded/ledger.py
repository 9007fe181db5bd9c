"""Which slots hold values that steps of a segment have made, and which have come from elsewhere.

A slot may be used for one value after the other, so what is known of it changes with every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.plan.schedule import Integers, Picks, Span, pick, slot_count
from penstock.run.arenas import Arena
from penstock.run.prepared import (
    Prepared,
    PreparedCopy,
    PreparedLaunch,
    PreparedPadding,
    PreparedRead,
    PreparedStore,
    is_repeatable,
)
from penstock.run.runner import Runner


class Rows(NamedTuple):
    """Slots whose values were kept; None: all that the arena holds."""

    arena: int
    slots: Integers | None
    #: Whether some of the values have come from elsewhere, while the segment ran.
    is_foreign: bool = False
    #: What they take.
    bytes: int = 0

    def put_back(self, arena: Arena, values: torch.Tensor) -> None:
        """Write the values into the slots of another arena like theirs."""
        if self.slots is None:
            arena.hold(values)
        else:
            arena.write(pick(self.arena, self.slots), values)


class Known(NamedTuple):
    """Slots whose values are known at some time, by arena, and arenas that hold a known tensor."""

    slots: dict[int, npt.NDArray[np.bool_]]
    whole: set[int]
    #: Slots that have got values from elsewhere, which running again does not bring.
    foreign: dict[int, npt.NDArray[np.bool_]]

    def has(self, rows: Rows) -> bool:
        """Whether all these rows are known."""
        if rows.is_foreign:
            return False
        if rows.slots is None:
            return rows.arena in self.whole
        marks = self.slots.get(rows.arena)
        if marks is None or (len(rows.slots) and rows.slots.max() >= len(marks)):
            return False
        return bool(marks[rows.slots].all())

    def joined(self, after: Known) -> Known:
        """What is known after both."""
        slots, foreign = dict(self.slots), dict(self.foreign)
        for arena, marks in after.foreign.items():
            if arena in slots:
                slots[arena] = _without(slots[arena], marks)
            foreign[arena] = _either(marks, foreign.get(arena))
        for arena, marks in after.slots.items():
            slots[arena] = _either(marks, slots.get(arena))
        return Known(slots, (self.whole - after.foreign.keys()) | after.whole, foreign)


def nothing_known() -> Known:
    """No slot has a known value."""
    return Known({}, set(), {})


def _either(marks: npt.NDArray[np.bool_], more: npt.NDArray[np.bool_] | None) -> Any:
    """What is marked in one or the other; slots may have been added in between."""
    if more is None:
        return marks
    long, short = (marks, more) if len(marks) > len(more) else (more, marks)
    made = long.copy()
    made[: len(short)] |= short
    return made


def _without(marks: npt.NDArray[np.bool_], less: npt.NDArray[np.bool_]) -> Any:
    """What is marked in the first and not in the second."""
    made, count = marks.copy(), min(len(marks), len(less))
    made[:count] &= ~less[:count]
    return made


class Ledger:
    """Which slots hold values that the segment at work has made itself, or has kept."""

    def __init__(self) -> None:
        self.known: dict[int, npt.NDArray[np.bool_]] = {}
        #: Arenas that hold one tensor at a time, which is known.
        self.known_whole: set[int] = set()
        #: Slots that have got values from elsewhere since the segment began.
        self.foreign: dict[int, npt.NDArray[np.bool_]] = {}
        #: How many chunks of each arena were looked at.
        self.chunks: dict[int, int] = {}

    def clear(self) -> None:
        """A new segment begins."""
        self.hand_over()

    def hand_over(self) -> Known:
        """What is known now; a new segment begins."""
        known = Known(self.known, self.known_whole, self.foreign)
        self.known, self.known_whole, self.foreign = {}, set(), {}
        self.chunks.clear()
        return known

    def missing(self, run: Runner, step: Prepared) -> Iterator[tuple[Rows, torch.Tensor]]:
        """The rows that a step is about to read and that nobody here has made, with values of
        their own; from now on they are known. Where memory runs out it may be asked again for the
        others.
        """
        for source in sources_of(step):
            number, arena = source.arena, run.arena(source.arena)
            if arena.is_held:
                if number not in self.known_whole:
                    self.known_whole.add(number)
                    whole = arena.chunks[0]
                    yield Rows(number, None, number in self.foreign, whole.nbytes), whole
                continue
            slots = self._unknown(run, source)
            if len(slots):
                picked = pick(number, slots)
                values = arena.gather(picked)
                owned = values.clone() if type(picked) is Span else values
                self.known[number][slots] = True  # not before they are there
                is_foreign = self._are_foreign(number, slots)
                yield Rows(number, slots, is_foreign, owned.nbytes), owned

    def _are_foreign(self, arena: int, slots: Integers) -> bool:
        """Whether some slots have got their values from elsewhere."""
        marks = self.foreign.get(arena)
        return marks is not None and bool(marks[slots[slots < len(marks)]].any())

    def _unknown(self, run: Runner, source: Span | Picks) -> Integers:
        known = self._marks(run, source)
        if isinstance(source, Span):
            first = source.start
            found = np.flatnonzero(~known[first : first + source.count])
            return found + first if len(found) else found
        held = known[source.slots]
        return source.slots[:0] if held.all() else _each_once(source.slots[~held])

    def _marks(self, run: Runner, source: Span | Picks) -> npt.NDArray[np.bool_]:
        """The marks of an arena's slots; inputs are always known."""
        number = source.arena
        arena = run.arena(number)
        marks, count = self.known.get(number), len(arena.chunks)
        if marks is None or self.chunks[number] != count:
            grown = np.zeros(_end_of(arena), np.bool_)
            if marks is not None:
                grown[: len(marks)] = marks
            for start, rows in lent_ranges(arena):
                grown[start : start + rows] = True
            marks = self.known[number] = grown
            self.chunks[number] = count
        return marks

    def written(self, run: Runner, step: Prepared) -> None:
        """A step has written its results."""
        is_known = is_repeatable(step)
        for target in targets_of(step):
            if isinstance(target, Span) and target.is_whole:
                (self.known_whole.add if is_known else self.known_whole.discard)(target.arena)
                continue
            self._marks(run, target)[_within(target)] = is_known

    def received(self, run: Runner, target: Span | Picks) -> None:
        """Slots have got values from elsewhere: whoever reads them keeps them."""
        if isinstance(target, Span) and target.is_whole:
            self.known_whole.discard(target.arena)
            self.foreign[target.arena] = np.ones(1, np.bool_)
            return
        marks = self._marks(run, target)
        marks[_within(target)] = False
        fresh = np.zeros(len(marks), np.bool_)
        fresh[_within(target)] = True
        self.foreign[target.arena] = _either(fresh, self.foreign.get(target.arena))


def _each_once(slots: Integers) -> Integers:
    """The slots in order, for hundreds of them faster than numpy's own way."""
    ordered = np.sort(slots)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _within(slots: Span | Picks) -> slice | Integers:
    """Where marks of slots are."""
    if isinstance(slots, Span):
        return slice(slots.start, slots.start + slots.count)
    return slots.slots


def _end_of(arena: Arena) -> int:
    """How many slots an arena has."""
    return max((start + len(chunk) for start, chunk in _chunks_of(arena)), default=0)


def _chunks_of(arena: Arena) -> list[tuple[int, torch.Tensor]]:
    """The chunks of an arena and where they start; another thread may be about to add some."""
    chunks = list(arena.chunks)
    return list(zip(arena.starts, chunks, strict=False))


def lent_ranges(arena: Arena) -> Iterator[tuple[int, int]]:
    """The slots of an arena whose memory is not its own: inputs, which nobody writes to."""
    if arena.is_held:
        return
    for start, chunk in _chunks_of(arena):
        if chunk.untyped_storage().data_ptr() not in arena.recycled:
            yield start, len(chunk)


def sources_of(step: Prepared) -> list[Span | Picks]:
    """The slots that a step reads."""
    if isinstance(step, PreparedLaunch):
        operands = step.launch.operands
        return [item for item in operands if isinstance(item, Span | Picks)]
    if isinstance(step, PreparedCopy):
        return [step.copy.source]
    return [step.padding.source] if isinstance(step, PreparedPadding) else []


def bytes_to_keep(run: Runner, step: Prepared) -> int:
    """Bytes of the rows that a step reads, as far as they are not the caller's own."""
    size = 0
    for source in sources_of(step):
        arena = run.arena(source.arena)
        chunk = None if arena.is_held else arena.chunk_of(source)
        if not arena.is_held and (chunk is None or not arena.is_given(chunk)):
            size += slot_count(source) * prod(arena.kind.shape) * arena.dtype.itemsize
    return size


def targets_of(step: Prepared) -> tuple[Span | Picks, ...]:
    """The slots that a step writes."""
    if isinstance(step, PreparedLaunch):
        return step.launch.targets
    if isinstance(step, PreparedStore):
        return (step.store.target,)
    if isinstance(step, PreparedCopy):
        return (step.copy.target,)
    return () if isinstance(step, PreparedRead) else (step.padding.target,)
