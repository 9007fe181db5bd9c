"""TensorArrays on the host: tables of slots, with copy on write.

An array is a number that names a range of a pool of slots. A version is shared by reference; a
write copies the range unless the writer holds the only reference and will not look at the old
version again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.plan.boxes import BoxTable
from penstock.plan.schedule import Array, Integers
from penstock.plan.slots import CountedTable, SequenceTable, SlotSpace, grown, ranges

#: An element that was never written.
UNWRITTEN = -1


@dataclass(slots=True, eq=False)
class ArrayTable(CountedTable):
    """All arrays whose elements live in one place."""

    elements: SlotSpace | SequenceTable | BoxTable
    pool: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    pool_top: int = 0
    base: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    length: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: Whether a write beyond the end makes the array longer.
    can_grow: Array = field(default_factory=lambda: np.empty(0, np.bool_))

    def create(self, length: Integers, *, can_grow: bool | Array = False) -> Integers:
        """New arrays with nothing written, counted once each."""
        numbers = self._numbers(len(length))
        self.can_grow[numbers] = can_grow
        total = int(length.sum())
        self._reserve(total)
        self.base[numbers] = self.pool_top + np.cumsum(length) - length
        self.length[numbers], self.counts[numbers] = length, 1
        self.pool[self.pool_top : self.pool_top + total] = UNWRITTEN
        self.pool_top += total
        return numbers

    def of_slots(self, slots: Integers, length: Integers) -> Integers:
        """New arrays of these elements, one array's after the other's."""
        numbers = self.create(length)
        self.elements.add(slots, 1)
        self.pool[ranges(self.base[numbers], length)] = slots
        return numbers

    def copy(self, numbers: Integers, length: Integers, *, may_steal: bool) -> Integers:
        """Versions to write to, with room for `length` elements, counted once more each.

        Where nobody else refers to an array and it is long enough, that is the array itself, if it
        may be stolen.
        """
        if may_steal:
            own = (self.counts[numbers] == 1) & (self.length[numbers] == length)
            if own.all():
                self.counts[numbers] += 1
                return numbers
        copies = self.create(length, can_grow=self.can_grow[numbers])
        old = self.length[numbers]
        slots = self.pool[ranges(self.base[numbers], old)]
        self.elements.add(slots, 1)
        self.pool[ranges(self.base[copies], old)] = slots
        return copies

    def read(self, numbers: Integers, index: Integers) -> Integers:
        """The slots of elements; `UNWRITTEN` where nothing was written."""
        slots: Integers = self.pool[self.base[numbers] + index]
        return slots

    def write(self, numbers: Integers, index: Integers, slots: Integers) -> None:
        """Put elements into arrays that nobody else refers to."""
        places = self.base[numbers] + index
        old = self.pool[places]
        self.elements.add(slots, 1)
        self.elements.add(old, -1)
        self.pool[places] = slots

    def all_slots(self, numbers: Integers) -> Integers:
        """The elements of arrays, one array's after the other's."""
        return self.pool[ranges(self.base[numbers], self.length[numbers])]

    def add(self, numbers: Integers, amount: int) -> None:
        """Change reference counts; an array that nobody refers to gives its elements up."""
        np.add.at(self.counts, numbers, amount)
        if amount < 0:
            dead = np.unique(numbers[(self.counts[numbers] == 0) & (numbers >= 0)])
            if len(dead):
                self.elements.add(self.all_slots(dead), -1)
                self.length[dead] = 0

    def _grow(self, capacity: int) -> None:
        self.base, self.length = grown(self.base, capacity, 0), grown(self.length, capacity, 0)
        self.can_grow = grown(self.can_grow, capacity, 0)

    def _reserve(self, total: int) -> None:
        if self.pool_top + total <= len(self.pool):
            return
        alive = np.flatnonzero(self.counts[: self.top] > 0)
        kept = self.all_slots(alive)
        capacity = max(2 * (len(kept) + total), 1024)
        self.base[alive] = np.cumsum(self.length[alive]) - self.length[alive]
        self.pool = grown(kept, capacity, UNWRITTEN)
        self.pool_top = len(kept)
