"""The rows of one instance: which launch ran each of them, and which rows it needed.

For a recursion over a tree the rows are the nodes of that tree, and what a row needs are its
children. What moves values between slots without a launch (copies between devices, padding) is not
followed: rows behind it have fewer children than they needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.schedule import Integers, Launch, Operand, Picks, Span, Target

if TYPE_CHECKING:
    from penstock.profiling.records import LaunchRecord

#: Launches whose rows are kept, and rows that are told of, at most.
MOST_LAUNCHES, MOST_ROWS = 2_000, 1_500


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One row of a launch."""

    launch: LaunchRecord
    #: The numbers of the rows that it needed.
    needs: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Trail:
    """What was launched for which instances. Kept as it is, and looked at when asked for."""

    entries: list[tuple[LaunchRecord, Launch, Integers]] = field(default_factory=list)

    def add(self, record: LaunchRecord, launch: Launch, instances: Integers) -> None:
        """One more launch, with the instance of each of its rows."""
        if len(self.entries) < MOST_LAUNCHES:
            self.entries.append((record, launch, instances))

    def rows_of(self, instance: int) -> list[InstanceRow]:
        """The rows of one instance, in the order in which they ran."""
        rows: list[InstanceRow] = []
        #: The row that wrote each slot, by arena and slot.
        writers: dict[tuple[int, int], int] = {}
        for record, launch, instances in self.entries:
            for place in np.flatnonzero(instances == instance).tolist():
                slots = (slot for item in launch.operands for slot in _slots(item, place, launch))
                found = (writers[slot] for slot in slots if slot in writers)
                for target in launch.targets:
                    writers.update(dict.fromkeys(_slots(target, place, launch), len(rows)))
                rows.append(InstanceRow(record, tuple(dict.fromkeys(found))))
                if len(rows) == MOST_ROWS:
                    return rows
        return rows


def _slots(item: Operand | Target, place: int, launch: Launch) -> Iterator[tuple[int, int]]:
    """The slots of an operand or target that belong to one row of a launch."""
    if not isinstance(item, Span | Picks):
        return
    count = item.count if isinstance(item, Span) else len(item.slots)
    each = item.length or 1
    if count != each * launch.rows:
        return  # elements of sequences, which belong to no row alone
    for position in range(place * each, (place + 1) * each):
        slot = item.start + position if isinstance(item, Span) else int(item.slots[position])
        yield item.arena, slot
