"""What one call has in flight on the queues of its devices: tasks, messages between them, failures.

A failure cancels all that has not begun. Tasks that are cancelled still pass on their messages,
empty, so nobody waits for ever; the caller gets the failure that is first in the schedule.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context

import torch

from penstock.ir.devices import Device
from penstock.run.queues import Task, put_tasks, stream_of

#: Batches of tasks that are in the queues at a time, at most: how far planning runs ahead.
MOST_BATCHES = 3


class Message:
    """Values that one device sends and another takes."""

    __slots__ = ("_event", "_is_there", "_values")

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self._values: torch.Tensor | None = None
        #: Where the values are ready, on an accelerator.
        self._event: torch.cuda.Event | None = None

    def put(self, values: torch.Tensor | None) -> None:
        """Send values; None if there are none, because the sender was cancelled."""
        if values is not None and values.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(values.device))
        self._values = values
        self._is_there.set()

    def take(self) -> torch.Tensor | None:
        """Wait for the values, and let go of them."""
        self._is_there.wait()
        values, self._values = self._values, None
        if values is not None and self._event is not None:
            stream = torch.cuda.current_stream(values.device)
            stream.wait_event(self._event)
            values.record_stream(stream)
        return values


class Flight:
    """The tasks of one call."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices
        self._is_inference = torch.is_inference_mode_enabled()
        self._contexts = [copy_context() for _ in devices]
        self._lock = threading.Lock()
        self._failure: tuple[int, BaseException] | None = None
        #: For each batch that may still be under way, what says that a device is through with it.
        self._batches: deque[list[threading.Event]] = deque()

    @property
    def is_cancelled(self) -> bool:
        """Whether a task has failed, or the caller has given up."""
        return self._failure is not None

    def task(self, number: int, device: int, work: Callable[[], None]) -> Task:
        """Work that is number `number` in the schedule, as a task."""
        context = self._contexts[device]

        def run() -> None:
            if self._failure is None:
                try:
                    context.run(self._work, work)
                except BaseException as error:
                    self.cancel(error, number)

        return run

    def _work(self, work: Callable[[], None]) -> None:
        if self._is_inference:
            with torch.inference_mode():
                work()
        else:
            work()

    def sending(self, number: int, device: int, message: Message, find: Find) -> Task:
        """A task that sends values; an empty message, if it is cancelled."""
        found: list[torch.Tensor] = []
        task = self.task(number, device, lambda: found.append(find()))

        def run() -> None:
            task()
            message.put(found.pop() if found else None)

        return run

    def put(self, tasks: Sequence[Sequence[Task]]) -> None:
        """Put a batch of tasks, for each device, into the queues; waits if too many are there."""
        while len(self._batches) >= MOST_BATCHES:
            self._wait_for_one()
        self.check()
        ends = [threading.Event() for mine in tasks if mine]
        started = iter(ends)
        self._follow_caller()
        put_tasks(
            {
                device: [*mine, next(started).set]
                for device, mine in zip(self.devices, tasks, strict=True)
                if mine
            }
        )
        self._batches.append(ends)

    def cancel(self, error: BaseException, number: int = -1) -> None:
        """Do not begin with anything more."""
        with self._lock:
            if self._failure is None or number < self._failure[0]:
                self._failure = number, error

    def check(self) -> None:
        """Raise what has gone wrong so far, once nothing is under way any more."""
        if self._failure is not None:
            self.land()

    def land(self) -> None:
        """Wait until all is done, and raise what has gone wrong."""
        while self._batches:
            self._wait_for_one()
        self._lead_caller()
        if self._failure is not None:
            raise self._failure[1]

    def _wait_for_one(self) -> None:
        for event in self._batches[0]:
            event.wait()
        self._batches.popleft()

    # ---- streams ---------------------------------------------------------------------------------

    def _follow_caller(self) -> None:
        """Accelerators begin when the caller's stream has come to this point."""
        for device in self.devices:
            stream = stream_of(device)
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(stream.device))

    def _lead_caller(self) -> None:
        """The caller's stream goes on when accelerators have come to this point."""
        for device in self.devices:
            stream = stream_of(device)
            if stream is not None:
                torch.cuda.current_stream(stream.device).wait_stream(stream)


Find = Callable[[], torch.Tensor]
