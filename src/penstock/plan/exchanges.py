"""Which rows cross from one device to another, for each instruction of a plan, in its order.

A plan says nothing of devices: its arenas are those of the whole program. Each device has a copy of
every arena that it uses, in which the slots that it has written or received hold. An instruction
that reads a slot which does not hold on its device needs an exchange first. The rules follow from
the plan and from the devices of blocks alone, so every process finds the same exchanges. No torch,
no clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.plan.schedule import Array, Integers, Picks, Span, pick
from penstock.plan.slots import grown

#: In the place of a device: the values were on the host, so every device has them.
ON_HOST = -1

#: In the place of an instruction: the values were there before the first.
GIVEN = -1


class Exchange(NamedTuple):
    """Rows that one device has and another needs; devices by number."""

    source: int
    target: int
    #: The slots, of an arena of the plan; all that the arena holds, if it is held as a whole.
    rows: Span | Picks
    #: The instruction of the plan that needs them, and which of its operands they are.
    reader: int
    operand: int
    #: The last instruction that wrote one of them, counted as the runner gets them, with copies;
    #: `GIVEN` for inputs, which every process has.
    after: int


class Upload(NamedTuple):
    """Rows that a device takes from the host."""

    target: int
    rows: Span | Picks
    values: Array


class ArenaHolders:
    """Who has the values of one arena: for each slot the devices that hold it."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: A bit for each device; the device that wrote it; and the instruction that did.
        self.holders: Integers = np.zeros(0, np.int64)
        self.owner: Integers = np.zeros(0, np.int64)
        self.writer: Integers = np.zeros(0, np.int64)
        #: The values of slots that were written by the host.
        self.stored: Array | None = None
        #: How many rows the arena holds, if they are taken over as a whole.
        self.whole: int | None = None

    def write(self, device: int, target: Span | Picks, instruction: int) -> None:
        """A device has written slots."""
        where = self._slots(target)
        self.holders[where] = 1 << device
        self.owner[where] = device
        self.writer[where] = instruction
        if isinstance(target, Span) and target.is_whole:
            self.whole = target.count

    def store(self, target: Span | Picks, values: Array) -> None:
        """The host has written slots: no device has them yet."""
        where = self._slots(target)
        self.holders[where] = 0
        self.owner[where] = ON_HOST
        if self.stored is None or len(self.stored) < len(self.owner):
            bigger = np.zeros((len(self.owner), *values.shape[1:]), values.dtype)
            if self.stored is not None:
                bigger[: len(self.stored)] = self.stored
            self.stored = bigger
        self.stored[where] = values

    def device_of(self, source: Span | Picks) -> int | None:
        """The device that wrote the first of these slots that any has written."""
        owners = self.owner[self._slots(source)]
        written = owners[owners != ON_HOST]
        return int(written[0]) if len(written) else None

    def bring(
        self, device: int, source: Span | Picks, reader: int, operand: int
    ) -> Iterator[Exchange | Upload]:
        """What must come to a device before it reads these slots; from then on it has them."""
        where = self._slots(source)
        bit = 1 << device
        held = self.holders[where] & bit
        if held.all():
            return
        if self.whole is not None:
            missing = np.arange(self.whole)
        elif isinstance(where, slice):
            missing = np.flatnonzero(held == 0) + where.start
        else:
            missing = np.unique(where[held == 0])
        owners = self.owner[missing]
        for owner in np.unique(owners).tolist():
            slots = missing[owners == owner]
            rows = pick(self.number, slots)
            if owner == ON_HOST:
                assert self.stored is not None
                yield Upload(device, rows, self.stored[slots])
                continue
            if self.whole is not None:
                rows = Span(self.number, 0, self.whole, is_whole=True)
            yield Exchange(owner, device, rows, reader, operand, int(self.writer[slots].max()))
        self.holders[missing] |= bit

    def _slots(self, source: Span | Picks) -> slice | Integers:
        """Slots as an index of the arrays, which have room for them."""
        if isinstance(source, Span):
            self._make_room(source.start + source.count)
            return slice(source.start, source.start + source.count)
        self._make_room(int(source.slots.max(initial=-1)) + 1)
        return source.slots

    def _make_room(self, end: int) -> None:
        if end > len(self.holders):
            room = max(end, 2 * len(self.holders), 1024)
            self.holders = grown(self.holders, room, 0)
            self.owner = grown(self.owner, room, 0)
            self.writer = grown(self.writer, room, 0)
