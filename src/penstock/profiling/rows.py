"""The rows of one instance: which launch ran each of them, and which rows it needed.

For a recursion over a tree the rows are the nodes of that tree, and what a row needs are its
children. Copies, also those between devices, are followed; padding is not, and neither are other
processes: rows behind them have fewer children than they needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.plan.schedule import Copy, Integers, Launch, Operand, Picks, Span, Target

if TYPE_CHECKING:
    from penstock.profiling.records import LaunchRecord

#: Launches and copies that are kept, and rows that are told of, at most.
MOST_KEPT, MOST_ROWS = 4_000, 1_500

#: An arena and one of its slots.
Slot: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One row of a launch."""

    launch: LaunchRecord
    #: The numbers of the rows that it needed.
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """Values were read, to be copied."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class Received:
    """Values that were read before were written; on another device that may be much later."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch, with the instance of each of its rows."""

    record: LaunchRecord
    launch: Launch
    instances: Integers


@dataclass(slots=True, eq=False)
class Trail:
    """What was launched for which instances, and what was copied where. Kept as it is, and looked
    at when asked for.
    """

    entries: list[Launched | Sent | Received] = field(default_factory=list)

    def add(self, entry: Launched | Sent | Received) -> None:
        """One more step, when it has been done."""
        if len(self.entries) < MOST_KEPT:
            self.entries.append(entry)

    def rows_of(self, instance: int) -> list[InstanceRow]:
        """The rows of one instance, in the order in which they ran."""
        walk = _Walk(instance)
        for entry in self.entries:
            match entry:
                case Sent(copy):
                    walk.send(copy)
                case Received(copy):
                    walk.receive(copy)
                case Launched():
                    walk.launch(entry)
            if len(walk.rows) >= MOST_ROWS:
                break
        return walk.rows[:MOST_ROWS]


class _Walk:
    """Finds the rows of one instance by the slots that they write and read."""

    def __init__(self, instance: int) -> None:
        self.instance = instance
        self.rows: list[InstanceRow] = []
        #: The rows whose results are in each slot.
        self.writers: dict[Slot, tuple[int, ...]] = {}
        #: The same of values that are under way, by the identity of the copy.
        self.sent: dict[int, list[tuple[int, ...]]] = {}

    def launch(self, entry: Launched) -> None:
        launch = entry.launch
        for place in np.flatnonzero(entry.instances == self.instance).tolist():
            slots = (slot for item in launch.operands for slot in _slots(item, place, launch.rows))
            needs = tuple(
                dict.fromkeys(row for slot in slots for row in self.writers.get(slot, ()))
            )
            for target in launch.targets:
                written = _slots(target, place, launch.rows)
                self.writers.update(dict.fromkeys(written, (len(self.rows),)))
            self.rows.append(InstanceRow(entry.record, needs))

    def send(self, copy: Copy) -> None:
        sources, targets = _all_slots(copy.source), _all_slots(copy.target)
        each = len(sources) // max(1, len(targets))
        parts = (sources[n * each : (n + 1) * each] for n in range(len(targets)))
        self.sent[id(copy)] = [
            tuple(dict.fromkeys(row for slot in part for row in self.writers.get(slot, ())))
            for part in parts
        ]

    def receive(self, copy: Copy) -> None:
        found = self.sent.pop(id(copy), ())
        self.writers.update(zip(_all_slots(copy.target), found, strict=False))


def _slots(item: Operand | Target, place: int, rows: int) -> Iterator[Slot]:
    """The slots of an operand or target that belong to one row of a launch."""
    if not isinstance(item, Span | Picks):
        return
    count = item.count if isinstance(item, Span) else len(item.slots)
    each = item.length or 1
    if count != each * rows:
        return  # elements of sequences, which belong to no row alone
    for position in range(place * each, (place + 1) * each):
        slot = item.start + position if isinstance(item, Span) else int(item.slots[position])
        yield item.arena, slot


def _all_slots(item: Target) -> list[Slot]:
    """The slots of one side of a copy."""
    if isinstance(item, Span):
        return [(item.arena, slot) for slot in range(item.start, item.start + item.count)]
    return [(item.arena, slot) for slot in item.slots.tolist()]
