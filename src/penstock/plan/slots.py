"""Slots of arenas: allocation, reference counts and reuse.

A slot is in use while a row, a sequence, an array or an output refers to it. Slots with a count of
zero are found and reused only when an arena is full, so counting is all that a running program
pays. Chunks never move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from penstock.plan.schedule import Array, Chunk, Integers, Kind, Picks, Span

#: Slots of a first chunk, at most and at least.
FIRST_CHUNK, LEAST_CHUNK = 1024, 16

#: Elements beyond which an arena is collected more often instead of growing: those of a first
#: chunk, and those of inputs, with which it does not grow.
LARGE = 1 << 24


def grown(array: Integers, capacity: int, fill: int) -> Integers:
    """The array with room for `capacity` entries."""
    bigger = np.full(capacity, fill, array.dtype)
    bigger[: len(array)] = array
    return bigger


def left_out(given: int, kind: Kind) -> int:
    """Of the slots of inputs those that do not count where it is decided whether an arena grows,
    and by how much.
    """
    return given if given * prod(kind.shape) > LARGE else 0


@lru_cache(maxsize=1024)
def first_chunk(kind: Kind) -> int:
    """How many slots a first chunk has: fewer where each takes much memory."""
    return max(LEAST_CHUNK, min(FIRST_CHUNK, LARGE // max(prod(kind.shape), 1)))


@dataclass(slots=True, eq=False)
class SlotSpace:
    """The slots of one arena."""

    number: int
    kind: Kind
    #: Chunks that the runner has not been told of yet.
    unannounced: list[Chunk] = field(default_factory=list)
    #: References to each slot; the last entry belongs to no slot and absorbs references to "no
    #: slot" (-1).
    counts: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    #: The next fresh slot and the end of the current chunk.
    top: int = 0
    end: int = 0
    #: Slots of inputs, which are never free.
    given: int = 0
    #: Slots found free by the last collection, ascending, and how many of them are taken again.
    free: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    taken: int = 0
    #: Sequences whose elements live here.
    sequences: SequenceTable = field(init=False)

    def __post_init__(self) -> None:
        self.sequences = SequenceTable(self)

    def adopt(self, count: int) -> int:
        """A pinned range for values that exist already (inputs); it is never reused."""
        start = self._grow(count)
        self.counts[start : start + count] = 1
        self.top = self.end
        self.given += count
        return start

    def allocate(self, count: int, *, as_run: bool = False) -> Span | Picks:
        """Slots for `count` new values, consecutive if that is possible or demanded; counted once
        each.
        """
        if self.top + count > self.end:
            found = self._reuse(count, as_run)
            if found is not None:
                return found
            self.top = self._grow(max(count, self._made, first_chunk(self.kind)))
        start = self.top
        self.top += count
        self.counts[start : start + count] = 1
        return Span(self.number, start, count)

    def release(self, target: Span | Picks) -> None:
        """Drop the count that `allocate` gave."""
        if isinstance(target, Span):
            self.counts[target.start : target.start + target.count] -= 1
        else:
            self.counts[target.slots] -= 1

    def add(self, slots: Integers, amount: int) -> None:
        """Change the reference counts of slots, each as often as it occurs."""
        np.add.at(self.counts, slots, amount)

    def live(self) -> int:
        """How many slots are referred to, pinned inputs included."""
        used = self.counts[: self.end] > 0
        self.sequences.mark(used)
        return int(used.sum())

    @property
    def _made(self) -> int:
        """The slots of which half should be free before they are used again."""
        return self.end - left_out(self.given, self.kind)

    def _grow(self, count: int) -> int:
        start, self.end = self.end, self.end + count
        self.counts = grown(self.counts[:-1], self.end + 1, 0)
        self.unannounced.append(Chunk(self.number, start, count))
        return start

    def _reuse(self, count: int, as_run: bool) -> Span | Picks | None:
        is_stale = self.taken + count <= len(self.free)
        if not is_stale:
            self._collect()
            if 2 * len(self.free) < self._made or count > len(self.free):
                self.free, self.taken = self.free[:0], 0
                return None
        slots = self.free[self.taken : self.taken + count]
        if slots[-1] - slots[0] != count - 1:
            run = self._find_run(count)
            if run is None and as_run and is_stale:
                self._collect()
                run = self._find_run(count)
            if run is None:
                if as_run:
                    return None
                self.taken += count
                self.counts[slots] = 1
                return Picks(self.number, slots)
            slots = run
        else:
            self.taken += count
        self.counts[slots] = 1
        return Span(self.number, int(slots[0]), count)

    def _find_run(self, count: int) -> Integers | None:
        rest = self.free[self.taken :]
        width = count - 1
        starts = np.flatnonzero(rest[width:] - rest[: max(len(rest) - width, 0)] == width)
        if not len(starts):
            return None
        start = int(starts[0])
        run = rest[start : start + count].copy()
        self.free = np.concatenate((rest[:start], rest[start + count :]))
        self.taken = 0
        return run

    def _collect(self) -> None:
        used = self.counts[: self.end] > 0
        self.sequences.mark(used)
        used[self.top : self.end] = (
            True  # the rest of the current chunk is handed out by `allocate`
        )
        self.free, self.taken = np.flatnonzero(~used), 0


@dataclass(slots=True, eq=False, kw_only=True)
class CountedTable:
    """Entries by number, each with a count of references: numbers that nobody refers to are given
    again once that makes half the table.
    """

    #: References; the last entry absorbs "no entry".
    counts: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    top: int = 0

    def live(self) -> int:
        """How many entries are referred to."""
        return int((self.counts[: self.top] > 0).sum())

    def _grow(self, capacity: int) -> None:
        """Make room in all columns but the counts."""
        raise NotImplementedError

    def _numbers(self, count: int) -> Integers:
        room = len(self.counts) - 1
        if self.top + count > room:
            free = np.flatnonzero(self.counts[: self.top] == 0)
            if 2 * len(free) >= room and len(free) >= count and count:
                return free[:count]
            capacity = max(2 * room, self.top + count, 256)
            self._grow(capacity)
            self.counts = grown(self.counts[:-1], capacity + 1, 0)
        self.top += count
        return np.arange(self.top - count, self.top)


@dataclass(slots=True, eq=False)
class SequenceTable(CountedTable):
    """Sequences of elements in one arena: consecutive slots, named by a number."""

    space: SlotSpace
    base: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    length: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: Where a padded copy of each sequence is: the number of a bundle (-1: none) and the row in it.
    bundle: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    row: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    def create(self, base: Integers, length: Integers) -> Integers:
        """Numbers for new sequences, counted once each."""
        count = len(base)
        numbers = self._numbers(count)
        self.base[numbers], self.length[numbers], self.counts[numbers] = base, length, 1
        self.bundle[numbers] = -1
        return numbers

    def _grow(self, capacity: int) -> None:
        self.base, self.length = grown(self.base, capacity, 0), grown(self.length, capacity, 0)
        self.bundle, self.row = grown(self.bundle, capacity, -1), grown(self.row, capacity, 0)

    def add(self, numbers: Integers, amount: int) -> None:
        """Change the reference counts of sequences, each as often as it occurs."""
        np.add.at(self.counts, numbers, amount)

    def mark(self, used: Array) -> None:
        """Mark the slots of all sequences that are referred to."""
        alive = np.flatnonzero(self.counts[: self.top] > 0)
        if len(alive):
            used[ranges(self.base[alive], self.length[alive])] = True


def ranges(base: Integers, length: Integers) -> Integers:
    """The slots base, base + 1, ... of each range, one range after the other."""
    total = int(length.sum())
    ends = np.cumsum(length)
    return np.repeat(base - (ends - length), length) + np.arange(total)
