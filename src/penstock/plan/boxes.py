"""Values whose shape differs from row to row in more than their length: each names its arena and
its slot.

An arena holds one shape, so such a value is boxed: a number that stands for (arena, slot).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.plan.schedule import Integers
from penstock.plan.slots import CountedTable, SlotSpace, grown


@dataclass(slots=True, eq=False)
class BoxTable(CountedTable):
    """All boxed values of one dtype, rank and device."""

    #: The arena of a shape.
    space: Callable[[tuple[int, ...]], SlotSpace]
    spaces: list[SlotSpace]
    arena: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    slot: Integers = field(default_factory=lambda: np.empty(0, np.int64))

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

    def _grow(self, capacity: int) -> None:
        self.arena, self.slot = grown(self.arena, capacity, 0), grown(self.slot, capacity, 0)
