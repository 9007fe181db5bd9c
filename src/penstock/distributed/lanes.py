"""The threads of a rank with several devices: one for each, and one for all its messages.

Tasks of one thread are carried out in the order in which they are added. What one of them finds
goes to another as a message between threads; a task that is cancelled lets nobody wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from penstock.distributed.transport import Transport
from penstock.ir.devices import Device
from penstock.run.flight import Flight, Message, Work
from penstock.run.queued import Batch
from penstock.run.queues import Task


class Lanes:
    """The threads of a rank, for one call: one for each of its devices, the last for messages."""

    def __init__(self, transport: Transport, devices: Sequence[Device], operation: str) -> None:
        self.transport, self._operation = transport, operation
        mine = [n for n, device in enumerate(devices) if (device.rank or 0) == transport.rank]
        messages = Device(transport.rank, "messages")
        #: The lane of each device of this rank, and that of messages.
        self.lanes = {device: lane for lane, device in enumerate(mine)}
        self.messages = len(mine)
        self.flight = Flight([*(devices[n] for n in mine), messages], transport.group.group_name)
        #: How many tasks there were.
        self.count = 0
        self._batch = Batch(len(mine) + 1)

    def add(self, lane: int, work: Work) -> None:
        """One more task for a thread; if it fails, all ranks hear of it at once."""
        self._batch.add(lane, self.count, self.flight.task(self.count, lane, self._guarded(work)))

    def mark(self, lane: int, task: Task) -> None:
        """One more task, which is carried out even if others are cancelled."""
        self._batch.add(lane, self.count, task)

    def pass_on(self, lane: int, find: Callable[[], torch.Tensor | None]) -> Message:
        """A task that finds rows for another thread; none if it is cancelled."""
        message = Message()

        def found() -> None:
            rows = find()
            if rows is not None:
                message.put(rows)

        task = self.flight.task(self.count, lane, self._guarded(found))

        def run() -> None:
            task()
            message.close()

        self._batch.add(lane, self.count, run)
        return message

    def take(self, lane: int, message: Message, work: Callable[[torch.Tensor], object]) -> None:
        """A task that needs rows of another thread; without them it is cancelled."""

        def taken() -> None:
            rows = message.take()
            if rows is not None:
                work(rows)

        self.add(lane, taken)

    def put(self) -> None:
        """Let the threads begin with the tasks so far."""
        batch, self._batch = self._batch, Batch(self.messages + 1)
        self.flight.put(batch.tasks())

    def land(self, error: BaseException | None = None) -> None:
        """Wait until all is done, and raise what has gone wrong on any thread."""
        if error is not None and self.transport.has_given_up:
            self.flight.cancel(error, self.count)
        self.flight.land()

    def _guarded(self, work: Work) -> Work:
        def guarded() -> None:
            with self.transport.guarded(self._operation):
                work()

        return guarded
