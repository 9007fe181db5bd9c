"""What one call has in flight on the queues of its devices: tasks, messages between them, failures.

A failure cancels all that has not begun. Tasks that are cancelled still pass on their messages,
empty, so nobody waits for ever; the caller gets the failure that is first in the schedule.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

import torch

from penstock.ir.devices import Device
from penstock.run.queues import DeviceQueue, Task, find_queue, put_tasks

Work: TypeAlias = Callable[[], object]
Find: TypeAlias = Callable[[], torch.Tensor]

#: Batches of tasks that are in the queues at a time, at most: how far planning runs ahead.
MOST_BATCHES = 32


class Message:
    """Values that one device sends and another takes."""

    __slots__ = ("_event", "_is_there", "_values")

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self._values: torch.Tensor | None = None
        #: When the values are ready, on an accelerator.
        self._event: torch.cuda.Event | None = None

    def put(self, values: torch.Tensor) -> None:
        """Send values."""
        if values.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(values.device))
        self._values = values
        self._is_there.set()

    def close(self) -> None:
        """Let nobody wait for values that do not come."""
        self._is_there.set()

    def take(self) -> torch.Tensor | None:
        """Wait for the values, and let go of them; None if the sender was cancelled."""
        self._is_there.wait()
        values, self._values = self._values, None
        if values is not None and self._event is not None:
            stream = torch.cuda.current_stream(values.device)
            stream.wait_event(self._event)
            values.record_stream(stream)
        return values


class Flight:
    """The tasks of one call."""

    def __init__(self, devices: Sequence[Device], user: str = "") -> None:
        self.devices = devices
        self._queues = [find_queue(device, user) for device in devices]
        self._contexts = [copy_context() for _ in devices]
        self._is_inference = torch.is_inference_mode_enabled()
        self._threads = torch.get_num_threads()
        #: Where the caller's own work on an accelerator goes, and that of CPU devices.
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream() if is_used else None
        self._lock = threading.Lock()
        self._numbers = count()
        #: For each device what it may send before its turn, by the instruction that it comes after.
        self._early: list[list[tuple[int, int, Task]]] = [[] for _ in devices]
        self._failure: tuple[int, BaseException] | None = None
        #: For each batch that may still be under way, what says that a device is through with it.
        self._batches: deque[list[threading.Event]] = deque()

    def task(self, number: int, device: int, work: Work) -> Task:
        """Work that is number `number` in the schedule, as a task."""
        context = self._contexts[device]

        def run() -> None:
            if self._failure is None:
                try:
                    context.run(self._work, device, work)
                except BaseException as error:
                    self.cancel(error, number)

        return run

    def step(self, number: int, device: int, work: Work) -> Task:
        """A task that is an instruction; what waits only for it is sent at once."""
        task = self.task(number, device, work)

        def run() -> None:
            task()
            while (early := self._next_early(device, number)) is not None:
                early()

        return run

    def _work(self, device: int, work: Work) -> None:
        """Work in the state of the caller, on the stream of the device."""
        queue = self._queues[device]
        queue.use_threads(self._threads)
        stream = queue.stream or self._stream
        on_stream = nullcontext() if stream is None else torch.cuda.stream(stream)
        # To leave inference mode is to turn gradients on; threads of devices have neither.
        mode = torch.inference_mode() if self._is_inference else nullcontext()
        with mode, on_stream:
            work()

    def sending(self, number: int, device: int, message: Message, find: Find) -> Task:
        """A task that sends values; if it is cancelled, nobody waits for them."""
        task = self.task(number, device, lambda: message.put(find()))

        def run() -> None:
            task()
            message.close()

        return run

    def send_early(self, device: int, after: int, task: Task) -> Task:
        """A task that is run in its turn, or earlier: between other instructions, once that which
        it comes after is done. It must not matter to any that is in the queue already.
        """
        is_left = [True]

        def once() -> None:
            if is_left and is_left.pop():
                task()

        with self._lock:
            heappush(self._early[device], (after, next(self._numbers), once))
        return once

    def _next_early(self, device: int, done: int) -> Task | None:
        waiting = self._early[device]
        if not waiting or waiting[0][0] > done:
            return None
        with self._lock:
            return heappop(waiting)[2]

    def put(self, tasks: Sequence[Sequence[Task]]) -> None:
        """Put a batch of tasks, for each device, into the queues; waits if too many are there."""
        while len(self._batches) >= MOST_BATCHES:
            self._wait_for_one()
        self.check()
        self._lead(torch.cuda.Stream.wait_stream)
        batch: list[tuple[DeviceQueue, list[Task]]] = []
        ends = []
        for queue, mine in zip(self._queues, tasks, strict=True):
            if mine:
                ends.append(threading.Event())
                batch.append((queue, [*mine, ends[-1].set]))
        put_tasks(batch, partial(self._batches.append, ends))

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
        self._lead(lambda stream, caller: caller.wait_stream(stream))
        if self._failure is not None:
            raise self._failure[1]

    def _wait_for_one(self) -> None:
        for event in self._batches[0]:
            event.wait()
        self._batches.popleft()

    def _lead(self, wait: Callable[[torch.cuda.Stream, torch.cuda.Stream], object]) -> None:
        """Let streams of accelerators wait for the caller's, or the other way round."""
        for queue in self._queues:
            if queue.stream is not None:
                wait(queue.stream, torch.cuda.current_stream(queue.stream.device))
