"""Padded copies of sequences: bundles of rows that lie side by side in an arena of their own.

A bundle is made for the rows of a launch and stays as it is, so that the next launch for the same
rows (the next step of a decoder) finds it, and what gradients need of it is kept only once. A
sequence remembers the bundle that it was last copied to. The arena of a bundle that no living
sequence refers to is taken for another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.plan.schedule import Instruction, Integers, Kind, Pad, Span, pick
from penstock.plan.slots import SequenceTable, SlotSpace, ranges


@dataclass(slots=True, eq=False)
class Bundle:
    """Padded sequences in one arena."""

    number: int
    space: SlotSpace
    #: The sequences it was made of.
    table: SequenceTable | None = None
    sequences: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: Whether it is a result of the launch at hand.
    is_result: bool = False

    @property
    def is_free(self) -> bool:
        """Whether no living sequence refers to it, and no result is written to it."""
        if self.table is None:
            return not self.is_result
        mine = self.table.bundle[self.sequences] == self.number
        return not (mine & (self.table.counts[self.sequences] > 0)).any()


@dataclass(slots=True, eq=False)
class Bundles:
    """All bundles of one run."""

    spaces: list[SlotSpace]
    all: list[Bundle] = field(default_factory=list)
    #: How long the sequences of each bundle are; 0 behind the last.
    _lengths: Integers = field(default_factory=lambda: np.zeros(1, np.int64))
    _of_kind: dict[Kind, list[Bundle]] = field(default_factory=dict)

    def buckets(self, table: SequenceTable, numbers: Integers) -> Integers:
        """How long the padded copies of sequences are; 0 for those without."""
        return self._lengths[table.bundle[numbers]]

    def find(self, table: SequenceTable, numbers: Integers, length: int) -> Span | None:
        """The padded copies of sequences, where they lie side by side already."""
        number, row = int(table.bundle[numbers[0]]), int(table.row[numbers[0]])
        if number < 0 or self.all[number].space.kind.shape[0] != length:
            return None
        count = len(numbers)
        is_one = (table.bundle[numbers] == number).all()
        is_run = (table.row[numbers] == np.arange(row, row + count)).all()
        return Span(self.all[number].space.number, row, count) if is_one and is_run else None

    def copy(
        self, table: SequenceTable, numbers: Integers, length: int
    ) -> tuple[Span, Instruction | None]:
        """Padded copies of sequences, and what makes them if they are not there yet."""
        found = self.find(table, numbers, length)
        if found is not None:
            return found, None
        bundle, target = self._take(table.space.kind, length, len(numbers))
        bundle.table, bundle.sequences = table, numbers
        table.bundle[numbers], table.row[numbers] = bundle.number, np.arange(len(numbers))
        lengths = table.length[numbers]
        slots, arena = ranges(table.base[numbers], lengths), table.space.number
        source = pick(arena, slots) if len(slots) else Span(arena, 0, 0)
        return target._replace(is_whole=False), Pad(source, lengths, target, length)

    def target(self, kind: Kind, length: int, rows: int) -> Span:
        """Room for results that are padded; it is free again once they are taken apart."""
        bundle, target = self._take(kind, length, rows)
        bundle.table, bundle.is_result = None, True
        return target

    def free_results(self) -> None:
        """The results of a launch have been taken apart."""
        for bundle in self.all:
            bundle.is_result = False

    def _take(self, element: Kind, length: int, rows: int) -> tuple[Bundle, Span]:
        kind = element._replace(shape=(length, *element.shape))
        known = self._of_kind.setdefault(kind, [])
        bundle = next((each for each in known if each.is_free), None)
        if bundle is None:
            space = SlotSpace(len(self.spaces), kind)
            self.spaces.append(space)
            bundle = Bundle(len(self.all), space)
            self.all.append(bundle)
            self._lengths = np.array([*self._lengths[:-1], length, 0])
            known.append(bundle)
        space = bundle.space
        space.top = space.end = max(space.end, rows)
        return bundle, Span(space.number, 0, rows, is_whole=True)
