"""Values whose shape differs from row to row in more than their length: each names its arena and
its slot.

An arena holds one shape, so such a value is boxed: a number that stands for (arena, slot).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.plan.schedule import Integers
from penstock.plan.slots import SlotSpace, grown


@dataclass(slots=True, eq=False)
class BoxTable:
    """All boxed values of one dtype, rank and device."""

    #: The arena of a shape.
    space: Callable[[tuple[int, ...]], SlotSpace]
    spaces: list[SlotSpace]
    arena: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    slot: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: References; the last entry absorbs "no box".
    counts: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    top: int = 0

    def create(self, arena: int, slots: Integers) -> Integers:
        """Boxes for values, counted once each; they keep their slots in use."""
        numbers = self._numbers(len(slots))
        self.arena[numbers], self.slot[numbers], self.counts[numbers] = arena, slots, 1
        self.spaces[arena].add(slots, 1)
        return numbers

    def add(self, numbers: Integers, amount: int) -> None:
        """Change reference counts; a box that nobody refers to gives its slot up."""
        np.add.at(self.counts, numbers, amount)
        if amount < 0:
            dead = np.unique(numbers[(self.counts[numbers] == 0) & (numbers >= 0)])
            for arena in np.unique(self.arena[dead]):
                self.spaces[arena].add(self.slot[dead[self.arena[dead] == arena]], -1)

    def sizes(self, numbers: Integers, dimension: int) -> Integers:
        """The size of one dimension of each value."""
        shapes = np.array(
            [space.kind.shape[dimension : dimension + 1] or (0,) for space in self.spaces]
        )
        sizes: Integers = shapes[self.arena[numbers], 0]
        return sizes

    def live(self) -> int:
        """How many boxes are referred to."""
        return int((self.counts[: self.top] > 0).sum())

    def _numbers(self, count: int) -> Integers:
        if self.top + count > len(self.arena):
            free = np.flatnonzero(self.counts[: self.top] == 0)
            if 2 * len(free) >= len(self.arena) and len(free) >= count and count:
                return free[:count]
            capacity = max(2 * len(self.arena), self.top + count, 256)
            self.arena, self.slot = grown(self.arena, capacity, 0), grown(self.slot, capacity, 0)
            self.counts = grown(self.counts[:-1], capacity + 1, 0)
        self.top += count
        return np.arange(self.top - count, self.top)
