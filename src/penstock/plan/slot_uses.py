"""How often the slots of recorded values are still used.

A use is a record that reads the slot, through whatever alias, or a value that is kept and covers
it. All uses of a flush are counted beforehand; each read takes one away. Counts of arenas are
brought up to date only when an arena is full and at the end of a flush.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.schedule import Array, Integers, Span, Target, concatenate
from penstock.plan.slots import SlotSpace, ranges
from penstock.plan.value_table import ValueTable


class SlotUses:
    """Reads and new slots of one arena that its counts do not show yet."""

    def __init__(self, space: SlotSpace) -> None:
        self.space = space
        self.reads: list[Integers] = []
        self.made: list[tuple[Target, Array]] = []

    def allocate(self, count: int, *, as_run: bool) -> Target:
        """Fresh slots; what has been read for the last time is free before the arena grows."""
        if self.space.top + count > self.space.end:
            self.apply()
        return self.space.allocate(count, as_run=as_run)

    def apply(self) -> None:
        """Bring the counts up to date."""
        counts = self.space.counts
        for target, uses in self.made:
            if isinstance(target, Span):
                counts[target.start : target.start + target.count] += uses - 1
            else:
                counts[target.slots] += uses - 1
        self.made.clear()
        if self.reads:
            counts -= np.bincount(concatenate(self.reads), minlength=len(counts))
            self.reads.clear()


def count_uses(values: ValueTable, used: Integers, cell: Integers, cells: int) -> Integers:
    """Count each use of values: of those made in this flush by cell, of others in their arenas.

    `cell` is by value the number of its first slot among the slots that are made in this flush.
    """
    root, offset, forms = values.root[used], values.offset[used], values.form[used]
    lengths = values.form_slots[forms]
    places = cell[root] + offset
    is_new = values.maker[root] >= 0
    if not is_new.all():
        old = np.flatnonzero(~is_new)
        slots = values.slot[root[old]] + offset[old]
        assert slots.min() >= 0, "a value is read that nobody has made"
        _change(values, values.form_arena[forms[old]], slots, lengths[old], 1)
        places, lengths = places[is_new], lengths[is_new]
    return np.bincount(expand(places, lengths), minlength=cells)


def drop(values: ValueTable, dropped: Integers) -> None:
    """Give up values that were kept."""
    forms = values.form[dropped]
    arenas, lengths = values.form_arena[forms], values.form_slots[forms]
    _change(values, arenas, values.slot[dropped], lengths, -1)


def _change(
    values: ValueTable, arenas: Integers, slots: Integers, lengths: Integers, amount: int
) -> None:
    for arena in np.flatnonzero(np.bincount(arenas)).tolist():
        mine = np.flatnonzero(arenas == arena)
        values.spaces[arena].add(expand(slots[mine], lengths[mine]), amount)


def expand(first: Integers, lengths: Integers) -> Integers:
    """The slots first, first + 1, ... of each value."""
    if not len(lengths) or lengths.max() == 1:
        return first
    return ranges(first, lengths)
