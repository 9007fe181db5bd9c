"""What a plan leaves behind: all that outputs, gradients and profiles ask for once it has run.

An outcome is plain data. It holds nothing of the machine that it came from, so a plan that is kept
and run again serves as well as a fresh one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.ir.graph import Home, Wire
from penstock.plan.boxes import BoxTable
from penstock.plan.call_inputs import Adopted
from penstock.plan.schedule import Array, Integers, Kind
from penstock.plan.slots import SequenceTable, SlotSpace, ranges

if TYPE_CHECKING:
    from penstock.plan.machine import Machine


class Extent(NamedTuple):
    """What an arena holds, and how many slots were used."""

    kind: Kind
    end: int


class OnHost(NamedTuple):
    """Values that never were on a device, one for each instance."""

    values: Array


class InSlots(NamedTuple):
    """One slot for each instance."""

    arena: int
    slots: Integers

    def of(self, instances: slice | Integers) -> tuple[int, Integers]:
        """The arena and the slots of some instances."""
        return self.arena, self.slots[instances]


class InRuns(NamedTuple):
    """A run of slots for each instance: where it begins, and how long it is."""

    arena: int
    base: Integers
    lengths: Integers

    def of(self, instances: slice | Integers) -> tuple[int, Integers]:
        """The arena and the slots of some instances, one instance's after the other's."""
        return self.arena, ranges(self.base[instances], self.lengths[instances])


class InBoxes(NamedTuple):
    """For each instance an arena and a slot in it."""

    arenas: Integers
    slots: Integers

    def of(self, instances: slice | Integers) -> tuple[int, Integers]:
        """The arena and the slots of some instances, all of one shape."""
        return int(self.arenas[instances][0]), self.slots[instances]


#: Where the values of one input or output are when the plan has run.
Where: TypeAlias = InSlots | InRuns | InBoxes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of the planner has come to."""

    #: The arenas, by number.
    extents: tuple[Extent, ...]
    #: Where the values of each input went, and where they are; none for inputs without slots.
    adopted: Adopted
    inputs: tuple[Where | None, ...]
    results: tuple[Where | OnHost, ...]
    firings: int

    def input(self, position: int) -> Where:
        """Where an input that has slots is."""
        found = self.inputs[position]
        assert found is not None
        return found

    def result(self, position: int) -> Where:
        """Where an output is that has been computed."""
        found = self.results[position]
        assert not isinstance(found, OnHost)
        return found


def outcome_of(machine: Machine, adopted: Adopted) -> Outcome:
    """What a machine that has run leaves behind."""
    entry = machine.linked.contexts[0].context
    inputs = zip(machine.linked.graph.inputs, machine.input_slots, strict=True)
    results = zip(entry.outputs, machine.result_slots, strict=True)
    return Outcome(
        extents=tuple(Extent(space.kind, space.top) for space in machine.spaces),
        adopted=adopted,
        inputs=tuple(
            None if slots is None or item.slot is None else _where(machine, item.slot, slots)
            for item, slots in inputs
        ),
        results=tuple(_result(machine, wire, values) for wire, values in results),
        firings=machine.firings,
    )


def _result(machine: Machine, wire: Wire, values: Array | None) -> Where | OnHost:
    assert values is not None
    return OnHost(values) if wire.home is Home.HOST else _where(machine, wire, values)


def _where(machine: Machine, wire: Wire, values: Integers) -> Where:
    place = machine.place(wire)
    if isinstance(place, SequenceTable):
        return InRuns(place.space.number, place.base[values], place.length[values])
    if isinstance(place, BoxTable):
        return InBoxes(place.arena[values], place.slot[values])
    assert isinstance(place, SlotSpace)
    return InSlots(place.number, values)
