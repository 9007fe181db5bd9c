"""A plan carried out by several devices: each instruction on arenas of its own device, with copies
between devices in front of what reads across.

Arena `a` of the plan is, on device `d` of `n`, arena `a * n + d`. The first device is home: inputs
come in there, and outputs are brought there at the end. Everything after the planner sees ordinary
instructions; a copy whose ends lie on different devices is an exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.ir.devices import HOME, Device
from penstock.ir.graph import Block
from penstock.plan.call_inputs import Adopted, CallInputs
from penstock.plan.exchanges import GIVEN, ArenaHolders, Exchange
from penstock.plan.gates import Gates
from penstock.plan.limits import Limits
from penstock.plan.linked import Linked
from penstock.plan.machine import Machine, Steps
from penstock.plan.machine_state import ShapeOracle
from penstock.plan.outcome import InBoxes, OnHost, Outcome, Where
from penstock.plan.schedule import (
    Await,
    Chunk,
    Copy,
    Instruction,
    Integers,
    Launch,
    Mark,
    Operand,
    Pad,
    Picks,
    Read,
    Span,
    Store,
    Unpad,
    pick,
)


class Spaces(Sequence[Any]):
    """The arenas of all devices."""

    def __init__(self, spaces: Sequence[Any], devices: int) -> None:
        self._spaces, self._devices = spaces, devices

    def __len__(self) -> int:
        return len(self._spaces) * self._devices

    def __getitem__(self, number: Any) -> Any:
        return self._spaces[number // self._devices]


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a program, the first of which is home, and for each block its device."""

    devices: tuple[Device, ...]
    blocks: tuple[int, ...]


def find_placement(blocks: Sequence[Block]) -> Placement | None:
    """Where blocks run; None where one device runs them all, and it is in this process."""
    used = {block.device for block in blocks if block.device is not None}
    devices = tuple(sorted(used, key=lambda device: device.order))
    if len(devices) < 2 and not any(device.rank for device in devices):
        return None
    numbers = {device: number for number, device in enumerate(devices)}
    return Placement(devices, tuple(numbers.get(block.device or HOME, 0) for block in blocks))


def new_placed_planner(
    placement: Placement,
    linked: Linked,
    limits: Limits,
    shapes: ShapeOracle,
    count: int,
    seed: int,
    numbers: Sequence[int] | None,
) -> PlacedPlanner:
    """A machine for one call on several devices."""
    machine = Machine(linked, limits, shapes, count, seed, numbers)
    machine.gates = Gates()
    return PlacedPlanner(machine, len(placement.devices), placement.blocks)


class PlacedPlanner:
    """A machine whose plan is for several devices."""

    def __init__(self, machine: Machine, devices: int, blocks: Sequence[int]) -> None:
        self.machine = machine
        self.devices = devices
        #: The device of each block.
        self.blocks = blocks
        self.spaces = Spaces(machine.spaces, devices)
        #: The exchanges that were planned and not carried out yet, in the order of their copies.
        self.exchanges: deque[Exchange] = deque()
        #: How many instructions the runner has been handed; chunks do not count.
        self.count = 0
        #: How many instructions of the machine there were.
        self._planned = 0
        self._holders: dict[int, ArenaHolders] = {}
        #: The chunks of each arena of the plan, and the copies of arenas that are in use.
        self._chunks: dict[int, list[Chunk]] = {}
        self._used: set[tuple[int, int]] = set()
        self._adopted: Adopted = ()

    @property
    def launched(self) -> deque[Integers]:
        """For each launch to come, the instance of each of its rows."""
        return self.machine.launched

    @property
    def has_drawn(self) -> bool:
        """Whether any random key has been made."""
        return self.machine.has_drawn

    @property
    def firings(self) -> int:
        """How many nodes were fired."""
        return self.machine.firings

    def take(self, inputs: CallInputs) -> Adopted:
        """Give the inputs their slots, at home."""
        self._adopted = self.machine.take(inputs)
        for span in (span for spans in self._adopted for span in spans):
            self._used.add((span.arena, 0))
            self._chunks.setdefault(span.arena, []).append(
                Chunk(span.arena, span.start, span.count)
            )
            self._of(span.arena).write(0, span, GIVEN)
        return tuple(tuple(self._at(0, span) for span in spans) for spans in self._adopted)

    def outcome(self, adopted: Adopted) -> Outcome:
        """What the plan leaves behind, once all is planned."""
        found = self.machine.outcome(self._adopted)
        return Outcome(
            tuple(extent for extent in found.extents for _ in range(self.devices)),
            adopted,
            tuple(None if where is None else self._home(where) for where in found.inputs),
            tuple(
                where if isinstance(where, OnHost) else self._home(where) for where in found.results
            ),
            found.firings,
        )

    def run(self) -> Steps:
        """Plan the entry for all instances."""
        steps = self.machine.run()
        answer = None
        try:
            while True:
                item = steps.send(answer)
                answer = None
                self._planned += not isinstance(item, Chunk)
                for placed in self._place(item):
                    self.count += not isinstance(placed, Chunk)
                    answer = yield placed
        except StopIteration:
            pass
        for placed in self._bring_home():
            self.count += not isinstance(placed, Chunk)
            yield placed

    # ---- instructions ----------------------------------------------------------------------------

    def _place(self, item: Instruction) -> Iterator[Instruction]:
        """What becomes of an instruction; the last one stands for it."""
        match item:
            case Chunk():
                self._chunks.setdefault(item.arena, []).append(item)
                for device in range(self.devices):
                    if (item.arena, device) in self._used:
                        yield item._replace(arena=item.arena * self.devices + device)
            case Launch():
                device = self.blocks[item.block]
                yield from self._bring(device, item.operands)
                yield from self._write(device, item.targets)
                operands = tuple(self._at(device, operand) for operand in item.operands)
                targets = tuple(self._at(device, target) for target in item.targets)
                yield item._replace(operands=operands, targets=targets)
            case Store():
                self._of(item.target.arena).store(item.target, item.values)
            case Copy() | Pad() | Unpad():
                device = self._of(item.source.arena).device_of(item.source) or 0
                yield from self._bring(device, (item.source,))
                yield from self._write(device, (item.target,))
                source, target = self._at(device, item.source), self._at(device, item.target)
                yield item._replace(source=source, target=target)
            case Read():
                yield from self._place_read(item)
            case Mark() | Await():
                yield item

    def _place_read(self, item: Read) -> Iterator[Instruction]:
        """Each value is read where the first row of it was written."""
        sources = []
        for position, source in enumerate(item.sources):
            device = self._of(source.arena).device_of(source) or 0
            yield from self._bring(device, (source,), position)
            sources.append(self._at(device, source))
        yield item._replace(sources=tuple(sources))

    def _bring_home(self) -> Iterator[Instruction]:
        """Outputs end up on the first device."""
        found = self.machine.outcome(self._adopted)
        for position, where in enumerate(found.results):
            for arena, slots in _parts(where):
                yield from self._bring(0, (pick(arena, slots),), position)

    def _bring(
        self, device: int, operands: Iterable[Operand], first: int = 0
    ) -> Iterator[Instruction]:
        """Copies of what a device is about to read and has not got."""
        for position, operand in enumerate(operands, first):
            if not isinstance(operand, Span | Picks):
                continue
            yield from self._use(device, operand.arena)
            brought = self._of(operand.arena).bring(device, operand, self._planned - 1, position)
            for item in brought:
                target = self._at(device, item.rows)
                if not isinstance(item, Exchange):
                    yield Store(item.values, target)
                    continue
                yield from self._use(item.source, operand.arena)
                self.exchanges.append(item)
                source = self._at(item.source, item.rows)
                yield Copy(_plain(source), target)

    def _write(self, device: int, targets: Iterable[Span | Picks]) -> Iterator[Instruction]:
        for target in targets:
            yield from self._use(device, target.arena)
            self._of(target.arena).write(device, target, self.count)

    def _use(self, device: int, arena: int) -> Iterator[Instruction]:
        """The chunks of an arena that a device begins to use."""
        if (arena, device) not in self._used:
            self._used.add((arena, device))
            for chunk in self._chunks.get(arena, ()):
                yield chunk._replace(arena=arena * self.devices + device)

    # ---- arenas ----------------------------------------------------------------------------------

    def _of(self, arena: int) -> ArenaHolders:
        if arena not in self._holders:
            self._holders[arena] = ArenaHolders(arena)
        return self._holders[arena]

    def _at(self, device: int, item: Any) -> Any:
        """Slots of the plan as slots of a device."""
        if not isinstance(item, Span | Picks):
            return item
        return item._replace(arena=item.arena * self.devices + device)

    def _home(self, where: Where) -> Where:
        if isinstance(where, InBoxes):
            return where._replace(arenas=where.arenas * self.devices)
        return where._replace(arena=where.arena * self.devices)


def _plain(rows: Span | Picks) -> Span | Picks:
    return rows._replace(is_whole=False) if isinstance(rows, Span) else rows


def _parts(where: Where | OnHost) -> Iterator[tuple[int, Integers]]:
    """The slots of an output, arena by arena."""
    if isinstance(where, OnHost):
        return
    if isinstance(where, InBoxes):
        for arena in np.unique(where.arenas).tolist():
            yield arena, where.slots[where.arenas == arena]
        return
    arena, slots = where.of(slice(None))
    if len(slots):
        yield arena, slots
