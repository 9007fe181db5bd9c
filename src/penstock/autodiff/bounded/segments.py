"""Segments of a run: launches that can be run again from the rows that they start from.

A segment reads rows that it has not made itself. These are kept, each from just before the step
that first reads it, so that slots may be used for other values meanwhile. Inputs of the run stay
where they are. A step that cannot be run twice is left out: what it made counts as not made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.page import Page
from penstock.autodiff.tape import Entry
from penstock.plan.schedule import Integers, Picks, Span, pick
from penstock.run.arenas import Arena
from penstock.run.memory.costs import DeviceTimer
from penstock.run.memory.holdings import Holding
from penstock.run.prepared import (
    Prepared,
    PreparedCopy,
    PreparedLaunch,
    PreparedPadding,
    PreparedRead,
    PreparedStore,
)
from penstock.run.runner import Runner
from penstock.run.step_blocks import OpaqueBlock


class Rows(NamedTuple):
    """Slots whose values were kept; None: all that the arena holds."""

    arena: int
    slots: Integers | None

    def put_back(self, arena: Arena, values: torch.Tensor) -> None:
        """Write the values into the slots of another arena like theirs."""
        if self.slots is None:
            arena.hold(values)
        else:
            arena.write(pick(self.arena, self.slots), values)


class SegmentStep(NamedTuple):
    """A step, what it has left on the tape, and the rows to put back before it runs again."""

    step: Prepared
    entry: Entry
    rows: tuple[Rows, ...]

    @property
    def is_repeatable(self) -> bool:
        """Whether it may run again."""
        return is_repeatable(self.step)

    @property
    def page(self) -> Page | None:
        """Its page, if it has saved something that can be made again."""
        entry = self.entry
        return entry if isinstance(entry, Page) and entry.results and self.is_repeatable else None


class Known(NamedTuple):
    """Slots whose values are known at some time, by arena, and arenas that hold a known tensor."""

    slots: dict[int, npt.NDArray[np.bool_]]
    whole: set[int]

    def has(self, rows: Rows) -> bool:
        """Whether all these rows are known."""
        if rows.slots is None:
            return rows.arena in self.whole
        marks = self.slots.get(rows.arena)
        if marks is None or (len(rows.slots) and rows.slots.max() >= len(marks)):
            return False
        return bool(marks[rows.slots].all())

    def joined(self, after: Known) -> Known:
        """What is known after both."""
        slots = dict(self.slots)
        for arena, marks in after.slots.items():
            before = slots.get(arena, marks[:0])
            slots[arena] = marks.copy()
            slots[arena][: len(before)] |= before
        return Known(slots, self.whole | after.whole)


@dataclass(slots=True, eq=False)
class Segment:
    """Steps that follow each other on the tape."""

    #: The place of its first entry on the tape.
    start: int
    steps: list[SegmentStep] = field(default_factory=list)
    #: The rows that it starts from, in the order of its steps, and until it is closed their values.
    needs: list[Rows] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    #: The same, in the store, once it is closed.
    rows: Holding | None = None
    #: Bytes that its pages save.
    bytes: int = 0
    #: How long it ran, in seconds by the host's clock, or by that of a GPU.
    seconds: float = 0.0
    timer: DeviceTimer | None = None
    #: Those of its pages that save something, and can be made again.
    saving: list[Page] = field(default_factory=list)
    is_closed: bool = False
    #: Whether its pages are dropped and made again when backward comes to them; None: undecided.
    is_recomputed: bool | None = None
    #: What running it makes, or has of its own rows, once it is closed.
    known: Known = field(default_factory=lambda: Known({}, set()))
    #: The two that it was folded of, and what it was folded into.
    halves: tuple[Segment, Segment] | None = None
    parent: Segment | None = None
    #: How often it was folded.
    level: int = 0

    @property
    def leaves(self) -> Iterator[Segment]:
        """The segments inside that were not folded, in order."""
        if self.halves is None:
            yield self
        else:
            for half in self.halves:
                yield from half.leaves

    @property
    def top(self) -> Segment:
        """The largest segment that it is part of."""
        found = self
        while found.parent is not None:
            found = found.parent
        return found

    def has(self, leaf: Segment) -> bool:
        """Whether another is part of it."""
        while leaf is not self and leaf.parent is not None:
            leaf = leaf.parent
        return leaf is self

    def makes(self, rows: Rows) -> bool:
        """Whether rows are there once it has run."""
        return self.known.has(rows)

    def forget_known(self) -> None:
        """Some of its steps were undone: nothing is known after it."""
        found: Segment | None = self
        while found is not None:
            found.known = Known({}, set())
            found = found.parent

    @property
    def is_repeatable(self) -> bool:
        """Whether all of it may run again."""
        return self.halves is not None or all(noted.is_repeatable for noted in self.steps)

    @property
    def is_consumed(self) -> bool:
        """Whether no page will be needed again."""
        return all(page.is_used_up for leaf in self.leaves for page in leaf.saving)


def is_repeatable(step: Prepared) -> bool:
    """Whether a step may run again."""
    if not isinstance(step, PreparedLaunch):
        return True
    return not isinstance(step.block, OpaqueBlock) or step.block.is_repeatable


class Ledger:
    """Which slots hold values that the segment at work has made itself, or has kept."""

    def __init__(self) -> None:
        self.known: dict[int, npt.NDArray[np.bool_]] = {}
        #: Arenas that hold one tensor at a time, which is known.
        self.known_whole: set[int] = set()
        #: How many chunks of each arena were looked at.
        self.chunks: dict[int, int] = {}

    def clear(self) -> None:
        """A new segment begins."""
        self.known.clear()
        self.known_whole.clear()
        self.chunks.clear()

    def hand_over(self) -> Known:
        """What is known now; a new segment begins."""
        known = Known(self.known, self.known_whole)
        self.known, self.known_whole = {}, set()
        self.chunks.clear()
        return known

    def missing(self, run: Runner, step: Prepared) -> Iterator[tuple[Rows, torch.Tensor]]:
        """The rows that a step is about to read and that nobody here has made, with values of
        their own; from now on they are known.
        """
        for source in sources_of(step):
            number, arena = source.arena, run.arena(source.arena)
            if arena.is_held:
                if number not in self.known_whole:
                    self.known_whole.add(number)
                    yield Rows(number, None), arena.chunks[0]
                continue
            slots = self._unknown(run, source)
            if len(slots):
                self.known[number][slots] = True
                picked = pick(number, slots)
                values = arena.gather(picked)
                yield Rows(number, slots), values.clone() if type(picked) is Span else values

    def _unknown(self, run: Runner, source: Span | Picks) -> Integers:
        known = self._marks(run, source)
        if isinstance(source, Span):
            first = source.start
            found = np.flatnonzero(~known[first : first + source.count])
            return found + first if len(found) else found
        held = known[source.slots]
        return source.slots[:0] if held.all() else np.unique(source.slots[~held])

    def _marks(self, run: Runner, source: Span | Picks) -> npt.NDArray[np.bool_]:
        """The marks of an arena's slots; inputs are always known."""
        number = source.arena
        arena = run.arena(number)
        marks = self.known.get(number)
        if marks is None or self.chunks[number] != len(arena.chunks):
            ends = [s + len(chunk) for s, chunk in zip(arena.starts, arena.chunks, strict=True)]
            grown = np.zeros(max(ends, default=0), np.bool_)
            if marks is not None:
                grown[: len(marks)] = marks
            for start, count in lent_ranges(arena):
                grown[start : start + count] = True
            marks = self.known[number] = grown
            self.chunks[number] = len(arena.chunks)
        return marks

    def written(self, run: Runner, step: Prepared) -> None:
        """A step has written its results."""
        is_known = is_repeatable(step)
        for target in targets_of(step):
            if isinstance(target, Span) and target.is_whole:
                (self.known_whole.add if is_known else self.known_whole.discard)(target.arena)
                continue
            marks = self._marks(run, target)
            if isinstance(target, Span):
                marks[target.start : target.start + target.count] = is_known
            else:
                marks[target.slots] = is_known


def lent_ranges(arena: Arena) -> Iterator[tuple[int, int]]:
    """The slots of an arena whose memory is not its own: inputs, which nobody writes to."""
    if arena.is_held:
        return
    for start, chunk in zip(arena.starts, arena.chunks, strict=True):
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


def targets_of(step: Prepared) -> tuple[Span | Picks, ...]:
    """The slots that a step writes."""
    if isinstance(step, PreparedLaunch):
        return step.launch.targets
    if isinstance(step, PreparedStore):
        return (step.store.target,)
    if isinstance(step, PreparedCopy):
        return (step.copy.target,)
    return () if isinstance(step, PreparedRead) else (step.padding.target,)
