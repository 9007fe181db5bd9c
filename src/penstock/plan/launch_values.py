"""The operands and results of a launch: values of rows as slots, fresh slots for what is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.ir.graph import Home, Wire
from penstock.plan.boxes import BoxTable
from penstock.plan.bundles import Bundles
from penstock.plan.schedule import (
    Array,
    Hosted,
    Instruction,
    Integers,
    Kind,
    Launch,
    Operand,
    Shared,
    Span,
    Target,
    pick,
    slots_of,
)
from penstock.plan.slots import SequenceTable, SlotSpace

if TYPE_CHECKING:
    from penstock.plan.linked import Group, LinkedNode
    from penstock.plan.machine_state import ShapeOracle
    from penstock.plan.places import Place


class Launching(Protocol):
    """What launches of blocks that mix ask of the machine that plans them."""

    shapes: ShapeOracle
    bundles: Bundles
    #: Instructions of the firing at hand.
    out: list[Instruction]
    #: What gives up values that have arrived.
    held: list[Callable[[], None]]

    @property
    def spaces(self) -> Sequence[Space]:
        """The arenas."""

    @property
    def place(self) -> Callable[[Wire], Place]:
        """Where the values of a slot wire live."""

    def put_launch(self, node: LinkedNode, rows: Integers, launch: Launch) -> None:
        """One more instruction, with the instances of its rows."""

    def deliver(self, group: Group, rows: Integers, arrays: Sequence[Array]) -> None:
        """Let results arrive."""


class Space(Protocol):
    """What is known of any arena."""

    @property
    def kind(self) -> Kind:
        """What it holds."""


def sequence_table(machine: Launching, wire: Wire) -> SequenceTable | None:
    """Where the sequences of a wire are; None for other values."""
    if wire.home is not Home.SLOT:
        return None
    place = machine.place(wire)
    return place if isinstance(place, SequenceTable) else None


def box_table(machine: Launching, wire: Wire) -> BoxTable | None:
    """Where the boxed values of a wire are; None for other values."""
    if wire.home is not Home.SLOT:
        return None
    place = machine.place(wire)
    return place if isinstance(place, BoxTable) else None


def operand_of(machine: Launching, wire: Wire, values: Array | None) -> Operand:
    """An operand without dynamic dimensions; no values stand for a uniform one."""
    if values is None:
        return Shared(wire.number)
    if wire.home is Home.HOST:
        return Hosted(values)
    space = machine.place(wire)
    assert isinstance(space, SlotSpace)
    return pick(space.number, values)


def elements_of(table: SequenceTable, numbers: Integers, length: int) -> Operand:
    """The elements of sequences of one length."""
    slots = (table.base[numbers][:, None] + np.arange(length)).reshape(-1)
    if not len(slots):
        return Span(table.space.number, 0, 0, length)
    return pick(table.space.number, slots, length)


def new_values(
    machine: Launching, wire: Wire, count: int, shape: tuple[int, ...] | None
) -> tuple[Target, Integers]:
    """Fresh slots for one result of a launch, and what rows store of it."""
    place = machine.place(wire)
    if isinstance(place, BoxTable):
        assert shape is not None
        space = place.space(shape)
        boxed = space.allocate(count)
        numbers = place.create(space.number, slots_of(boxed))
        machine.held.append(lambda: space.release(boxed))
        machine.held.append(lambda: place.add(numbers, -1))
        return boxed, numbers
    if isinstance(place, SequenceTable):
        assert shape is not None
        length = shape[0]
        base, lengths = np.arange(count) * length, np.full(count, length)
        return new_sequences(machine, place, base, lengths, length)
    assert isinstance(place, SlotSpace)
    target = place.allocate(count)
    machine.held.append(lambda: place.release(target))
    return target, slots_of(target)


def new_sequences(
    machine: Launching, table: SequenceTable, base: Integers, lengths: Integers, length: int | None
) -> tuple[Target, Integers]:
    """Consecutive slots for sequences that start `base` slots after the first."""
    space = table.space
    target: Any = space.allocate(int(lengths.sum()), as_run=True)
    numbers = table.create(target.start + base, lengths)
    machine.held.append(lambda: space.release(target))
    machine.held.append(lambda: table.add(numbers, -1))
    return target._replace(length=length), numbers
