"""Which rows must travel before an instruction can be carried out: pure, the same on all ranks.

For each slot it is known which ranks have its value. Inputs and host values are everywhere, results
of a launch where it ran, rows that were received on both sides. Copies are made by every rank that
has what is copied. An instruction that needs rows which its rank does not have is preceded by
exchanges; nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.plan.schedule import (
    Copy,
    Instruction,
    Integers,
    Launch,
    Pad,
    Picks,
    Read,
    Span,
    Store,
    Unpad,
    pick,
)


class Exchange(NamedTuple):
    """Rows that one rank sends to another."""

    source: int
    target: int
    rows: Span | Picks


class Turn(NamedTuple):
    """One instruction in the order of all ranks."""

    #: What travels before it.
    exchanges: Sequence[Exchange]
    #: The ranks that carry it out, as bits.
    ranks: int
    #: The instruction, by rank where ranks have a part of it each.
    parts: dict[int, Instruction] | None = None


class Spread(NamedTuple):
    """Rows that one rank has and all others get."""

    source: int
    rows: Span | Picks


@dataclass(slots=True)
class _Held:
    """Who has the values of an arena."""

    #: For each slot the ranks that have its value, as bits.
    ranks: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    #: For each slot the rank to ask for it.
    owner: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    def reach(self, end: int) -> None:
        """Have room for this many slots."""
        missing = end - len(self.ranks)
        if missing > 0:
            more = np.zeros(max(missing, len(self.ranks)), np.int64)
            self.ranks = np.concatenate((self.ranks, more))
            self.owner = np.concatenate((self.owner, more))


class Exchanges:
    """Follows a schedule, and says what must travel.

    Arguments:
        places: the rank of each block.
        size: how many ranks there are.
    """

    def __init__(self, places: Sequence[int], size: int) -> None:
        self.places = places
        self.everyone = (1 << size) - 1
        self._size = size
        self._arenas: dict[int, _Held] = {}

    def install(self, span: Span) -> None:
        """Values that every rank has from the start."""
        self._set(span, self.everyone, 0)

    def turn(self, item: Instruction) -> Turn:
        """What an instruction takes."""
        if isinstance(item, Launch):
            return self._launch(item)
        if isinstance(item, Store):
            self._set(item.target, self.everyone, 0)
            return Turn((), self.everyone)
        if isinstance(item, Copy):
            return self._copy(item)
        if isinstance(item, Pad | Unpad):
            return self._pad(item)
        assert isinstance(item, Read)
        return self._read(item)

    def spread(self, rows: Span | Picks) -> list[Spread]:
        """What is sent so that every rank has these rows."""
        slots, held = _slots(rows), self._held(rows)
        missing = np.unique(slots[held.ranks[slots] != self.everyone])
        held.ranks[missing] = self.everyone
        return [Spread(owner, part) for owner, part in self._by_owner(rows.arena, missing)]

    def owner(self, arena: int, slots: Integers) -> Integers:
        """For each slot one rank that has its value, the same on all ranks."""
        return self._held(Picks(arena, slots)).owner[slots]

    # ---- instructions ----------------------------------------------------------------------------

    def _launch(self, item: Launch) -> Turn:
        rank = self.places[item.block]
        sources = [item for item in item.operands if isinstance(item, Span | Picks)]
        exchanges = self._bring(sources, rank)
        for target in item.targets:
            self._set(target, 1 << rank, rank)
        return Turn(exchanges, 1 << rank)

    def _copy(self, item: Copy) -> Turn:
        """Each value is copied by the ranks that have all its parts."""
        targets = _slots(item.target)
        if not len(targets):
            return Turn((), self.everyone)
        sources = _slots(item.source).reshape(len(targets), -1)
        held = self._held(item.source)
        exchanges: list[Exchange] = []
        torn = np.bitwise_and.reduce(held.ranks[sources], axis=1) == 0
        for rank in np.unique(held.owner[sources[torn, 0]]).tolist():
            mine = sources[torn][held.owner[sources[torn, 0]] == rank]
            exchanges += self._bring([pick(item.source.arena, mine.reshape(-1))], rank)
        ranks, owner = np.bitwise_and.reduce(held.ranks[sources], axis=1), held.owner[sources[:, 0]]
        ours = self._held(item.target)
        ours.ranks[targets], ours.owner[targets] = ranks, _one_of(ranks, owner)
        if (ranks == ranks[0]).all():
            return Turn(exchanges, int(ranks[0]))
        return Turn(exchanges, self.everyone, _parts(item, sources, targets, ranks, self._size))

    def _pad(self, item: Pad | Unpad) -> Turn:
        slots, held = _slots(item.source), self._held(item.source)
        exchanges: list[Exchange] = []
        ranks, rank = self.everyone, 0
        if len(slots):
            ranks, rank = int(np.bitwise_and.reduce(held.ranks[slots])), int(held.owner[slots[0]])
        if not ranks:
            exchanges, ranks = self._bring([item.source], rank), 1 << rank
        self._set(item.target, ranks, rank if ranks >> rank & 1 else ranks.bit_length() - 1)
        return Turn(exchanges, ranks)

    def _read(self, item: Read) -> Turn:
        """One rank reads, and tells the others."""
        first = _slots(item.sources[0])
        rank = int(self._held(item.sources[0]).owner[first[0]]) if len(first) else 0
        return Turn(self._bring(item.sources, rank), 1 << rank)

    # ---- who has what ----------------------------------------------------------------------------

    def _held(self, rows: Span | Picks) -> _Held:
        held = self._arenas.get(rows.arena)
        if held is None:
            held = self._arenas[rows.arena] = _Held()
        if isinstance(rows, Span):
            held.reach(rows.start + rows.count)
        elif len(rows.slots):
            held.reach(int(rows.slots.max()) + 1)
        return held

    def _set(self, target: Span | Picks, ranks: int, owner: int) -> None:
        held = self._held(target)
        where = _where(target)
        held.ranks[where], held.owner[where] = ranks, owner

    def _bring(self, sources: Iterable[Span | Picks], rank: int) -> list[Exchange]:
        """What a rank must get before it has all these rows."""
        found: list[Exchange] = []
        for source in sources:
            held, where = self._held(source), _where(source)
            is_missing = held.ranks[where] >> rank & 1 == 0
            if not is_missing.any():
                continue
            missing = np.unique(_slots(source)[is_missing])
            parts = self._by_owner(source.arena, missing)
            found += [Exchange(owner, rank, part) for owner, part in parts]
            held.ranks[missing] |= 1 << rank
        return found

    def _by_owner(self, arena: int, slots: Integers) -> Iterator[tuple[int, Span | Picks]]:
        owners = self._arenas[arena].owner[slots]
        for owner in np.unique(owners).tolist():
            yield owner, pick(arena, slots[owners == owner])


def _where(rows: Span | Picks) -> slice | Integers:
    if isinstance(rows, Span):
        return slice(rows.start, rows.start + rows.count)
    return rows.slots


def _slots(rows: Span | Picks) -> Integers:
    if isinstance(rows, Span):
        return np.arange(rows.start, rows.start + rows.count)
    return rows.slots


def _one_of(ranks: Integers, wanted: Integers) -> Integers:
    """The wanted rank where it is one of these, else the lowest of them."""
    lowest = np.log2(ranks & -ranks).astype(np.int64)
    return np.where(ranks >> wanted & 1 == 1, wanted, lowest)


def _parts(
    item: Copy, sources: Integers, targets: Integers, ranks: Integers, size: int
) -> dict[int, Instruction]:
    """For each rank the values that it copies."""
    parts: dict[int, Instruction] = {}
    for rank in range(size):
        mine = ranks >> rank & 1 == 1
        if mine.any():
            # Picked, not a view: source and target may be slots of one arena.
            source = Picks(item.source.arena, sources[mine].reshape(-1), item.source.length)
            parts[rank] = Copy(source, pick(item.target.arena, targets[mine], item.target.length))
    return parts
