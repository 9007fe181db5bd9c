"""Carries out a plan on the queues of several devices.

Each device has a thread that runs its own instructions in the order of the schedule. A copy between
devices is two tasks: the source sends the rows as soon as they are written, the target takes them
in front of the instruction that reads them, and waits for nothing else. The caller waits where a
value is read back, and at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.plan.placed import PlacedPlanner
from penstock.plan.schedule import (
    Array,
    Await,
    Chunk,
    Copy,
    Instruction,
    Launch,
    Mark,
    Picks,
    Read,
    Shared,
    Span,
)
from penstock.run.arenas import merged
from penstock.run.flight import Flight, Message
from penstock.run.fused.indices import Indices
from penstock.run.memory.exhaustion import note_exhausted
from penstock.run.prepared import PreparedLaunch, PreparedWindow, prepare_receipt
from penstock.run.queues import Task
from penstock.run.runner import Runner

if TYPE_CHECKING:
    import torch

Answer = TypeVar("Answer")


class Order(NamedTuple):
    """The earliest place of an instruction in the schedule, and where it is."""

    #: The number of an instruction that it may follow at once; its own, if it stays where it is.
    after: int
    number: int


class Item(NamedTuple):
    """A task with its place in the order of its device."""

    #: The instruction that it comes with, whether it is no earlier than that, and how many tasks
    #: were added before.
    number: int
    is_late: bool
    position: int
    task: Task


class OnQueues(Runner):
    """A runner whose instructions go to queues; comes before another kind of runner."""

    planner: PlacedPlanner
    flight: Flight
    shares_rows = False
    joins_shared = False
    #: Few, so that devices have something to do soon.
    window = 32
    #: Says to the thread of a device where in the schedule it is, as an `Order`.
    now: threading.local

    def carry_out(self, columns: Any) -> None:
        """Plan and run until nothing is left."""
        self.flight = Flight(self.executable.placement.devices)  # type: ignore[attr-defined]
        self.now = threading.local()
        self._count = 0
        self._marks: dict[int, list[threading.Event]] = {}
        #: The marks that the next launch waits for.
        self._awaited: list[int] = []
        try:
            self._carry_out_and_land(columns)
        except Exception as error:
            note_exhausted(error, self, None, 0)
            raise
        if self.recorder is not None:
            self.recorder.ended(self)

    def _carry_out_and_land(self, columns: Any) -> None:
        """The same; what has gone wrong on some device is raised when nothing is under way."""
        try:
            super().carry_out(columns)  # type: ignore[misc]
        except BaseException as error:
            self.flight.cancel(error, self._count)
            self.flight.land()
        self.flight.land()

    def _bind_ahead(self, step: PreparedLaunch) -> None:
        """Nothing is compiled for devices."""

    def _carry_out_prepared(
        self, window: list[Instruction]
    ) -> tuple[PreparedWindow, list[Array] | None]:
        """Put a window of instructions into the queues; what was read, if the last one reads."""
        self._grow(merged(item for item in window if isinstance(item, Chunk)))
        if len(self.planner.spaces):
            self.arena(len(self.planner.spaces) - 1)  # threads must not make arenas
        batch = Batch(len(self.flight.devices), self._count)
        read: tuple[Read, list[Message]] | None = None
        for item in window:
            if isinstance(item, Read):
                read = item, self._put_read(batch, item)
            elif not isinstance(item, Chunk):
                self._put(batch, item)
            self._count += not isinstance(item, Chunk)
        self.flight.put(batch.tasks())
        return PreparedWindow((), ()), None if read is None else self._answer(*read)

    def _put(self, batch: Batch, item: Instruction) -> None:
        if isinstance(item, Mark):
            self._put_mark(batch, item)
        elif isinstance(item, Await):
            self._awaited.append(item.mark)
        elif isinstance(item, Launch):
            self._put_launch(batch, item)
        elif isinstance(item, Copy) and self._device(item.source) != self._device(item.target):
            self._put_exchange(batch, item)
        else:
            assert not isinstance(item, Read | Chunk)
            device = self._device(item.target)
            indices = batch.indices[device]
            self._add(batch, device, lambda: self._run_steps((self._prepare(item, indices),)))

    def _put_launch(self, batch: Batch, item: Launch) -> None:
        for operand in item.operands:
            if isinstance(operand, Shared):
                self.uniform(operand.wire)  # once, and not on several threads
        device = self.planner.blocks[item.block]
        for mark in self._awaited:
            wait = partial(_wait_for, self._marks.get(mark, ()))
            batch.add(device, self._count, self._watched(device, "for earlier iterations", wait))
        self._awaited.clear()
        step = self._prepare(item, batch.indices[device])
        self._add(batch, device, partial(self._run_steps, (step,)))

    def _put_exchange(self, batch: Batch, item: Copy) -> None:
        """The rows are sent as soon as they are written, whatever else the source has to do."""
        exchange = self.planner.exchanges.popleft()
        message = Message()
        arena = self.arena(item.source.arena)

        def find() -> torch.Tensor:
            if self.recorder is not None:
                self.recorder.sent(item)
            rows = arena.gather(item.source)
            return rows.clone() if isinstance(item.source, Span) else rows

        source = self.flight.devices[exchange.source]
        take = self._watched(exchange.target, f"for rows of {source}", message.take)

        def receive() -> None:
            values = take()
            if values is not None:
                self._run_steps((prepare_receipt(self, item, values),))

        send = self.flight.sending(self._count, exchange.source, message, find)
        if exchange.after < batch.first:  # what comes after it may be in the queue already
            send = self.flight.send_early(exchange.source, exchange.after, send)
        batch.add(exchange.source, exchange.after, send)
        self._add(batch, exchange.target, receive, exchange.after)

    def _watched(
        self, device: int, reason: str, wait: Callable[[], Answer]
    ) -> Callable[[], Answer]:
        """A wait in the queue of a device, recorded if a profile is active."""
        recorder = self.recorder
        if recorder is None:
            return wait

        def watched() -> Answer:
            with recorder.wait(self.flight.devices[device].name or "cpu:0", reason):
                return wait()

        return watched

    def _put_mark(self, batch: Batch, item: Mark) -> None:
        known = self._marks.items()
        self._marks = {n: e for n, e in known if not all(event.is_set() for event in e)}
        events = self._marks[item.number] = [threading.Event() for _ in self.flight.devices]
        for device, event in enumerate(events):
            batch.add(device, self._count, event.set)

    def _put_read(self, batch: Batch, item: Read) -> list[Message]:
        """One message for each value, sent by the device that has it."""
        messages = []
        for source in item.sources:
            device, message = self._device(source), Message()
            gather = partial(self.arena(source.arena).gather, source)
            batch.add(
                device, self._count, self.flight.sending(self._count, device, message, gather)
            )
            messages.append(message)
        return messages

    def _answer(self, read: Read, messages: Sequence[Message]) -> list[Array]:
        with self.recorder.read(read) if self.recorder else nullcontext():
            values = [message.take() for message in messages]
            self.flight.check()
            return [item.cpu().numpy().copy() for item in values if item is not None]

    def _add(
        self, batch: Batch, device: int, work: Callable[[], object], after: int | None = None
    ) -> None:
        """A task that comes with this instruction; it could have come right after another."""
        order = Order(self._count if after is None else after, self._count)

        def numbered() -> None:
            self.now.order = order
            work()

        batch.add(device, self._count, self.flight.step(self._count, device, numbered))

    def _device(self, slots: Span | Picks) -> int:
        return slots.arena % self.planner.devices


class Batch:
    """The tasks of a window, by device."""

    def __init__(self, devices: int, first: int = 0) -> None:
        #: The first instruction of the window.
        self.first = first
        self._items: list[list[Item]] = [[] for _ in range(devices)]
        self._position = 0
        #: Index tensors are brought along by one thread each.
        self.indices = [Indices() for _ in range(devices)]

    def add(self, device: int, number: int, task: Task, *, is_before: bool = False) -> None:
        """One more task, which comes with, after or before an instruction."""
        self._items[device].append(Item(number, not is_before, self._position, task))
        self._position += 1

    def tasks(self) -> list[list[Task]]:
        """The tasks of each device in their order."""
        for items in self._items:
            items.sort(key=lambda item: item[:3])
        return [[item.task for item in items] for items in self._items]


def _wait_for(events: Iterable[threading.Event]) -> None:
    for event in events:
        event.wait()
