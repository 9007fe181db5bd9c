"""Device queues: one thread for each device, which carries out tasks in the order they come.

Queues live as long as the process and serve all calls. Tasks that are put together are put into all
queues before those of any other call: so the queues agree on an order in which each task waits only
for earlier ones, and nothing can wait in a circle.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from queue import SimpleQueue
from typing import TypeAlias

import torch

from penstock.ir.devices import Device

Task: TypeAlias = Callable[[], None]


class DeviceQueue:
    """The thread of one device; on an accelerator with a stream of its own."""

    def __init__(self, device: Device) -> None:
        self.device = device
        #: What is to be done, in this order; none of it may raise. None ends the thread.
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        name = device.name or ""
        #: None on a CPU.
        self.stream: torch.cuda.Stream | None = None
        #: How many threads its operations use, as far as it was told: torch keeps that per thread.
        self._threads = 0
        if name.startswith("cuda"):
            self.stream = torch.cuda.Stream(torch.device(name))  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._work, name=f"penstock {device}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the thread run out."""
        self.tasks.put(None)
        self._thread.join()

    def use_threads(self, count: int) -> None:
        """On its own thread: let operations use so many threads from here on."""
        if count != self._threads:
            torch.set_num_threads(count)
            self._threads = count

    def _work(self) -> None:
        torch.set_grad_enabled(False)
        while (task := self.tasks.get()) is not None:
            task()
            del task  # it holds the values of its call


#: By device and by who uses it.
_queues: dict[tuple[Device, str], DeviceQueue] = {}
_lock = threading.Lock()


def find_queue(device: Device, user: str = "") -> DeviceQueue:
    """The queue of a device, made when it is first asked for. Those of different users never wait
    for each other.
    """
    with _lock:
        if (device, user) not in _queues:
            _queues[device, user] = DeviceQueue(device)
        return _queues[device, user]


def put_tasks(tasks: Sequence[tuple[DeviceQueue, Sequence[Task]]], note: Task) -> None:
    """Put tasks into several queues, before or after all those of another call, and `note` it.

    All are put, or none: Ctrl-C is heard between steps of Python, and there is one. With some of
    them a queue would wait for ever for values that another was never asked for.
    """
    steps: list[Task] = [partial(queue.tasks.put, task) for queue, mine in tasks for task in mine]
    steps.append(note)
    with _lock:
        deque(map(call, steps), maxlen=0)


def _end_queues() -> None:
    with _lock:
        for queue in _queues.values():
            queue.end()
        _queues.clear()


def _forget_queues() -> None:
    """The threads of a parent do not live in its child."""
    global _lock
    _lock = threading.Lock()
    _queues.clear()


atexit.register(_end_queues)
os.register_at_fork(after_in_child=_forget_queues)
