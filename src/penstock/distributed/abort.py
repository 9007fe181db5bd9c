"""A rank that gives up says why in the job's store; a thread beside each wait looks for it.

The first reason stands. Looking costs nothing while messages come: it begins when a wait has lasted
for a while.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

#: Seconds between two looks, and how long to look for the reason of a wait that has failed.
INTERVAL, GRACE = 0.1, 1.0

_KEY = "abort"

T = TypeVar("T")


#: Threads that are in torch's C++ code: they ask a store and have no answer yet, or end waits; and
#: whether the process ends.
_asking: set[threading.Thread] = set()
_is_over = threading.Event()


def _within(seconds: float, action: Callable[[], T]) -> T | None:
    """What an action gives, if it ends in time: over a cut link the store never answers."""
    found: list[T] = []

    def ask() -> None:
        try:
            found.append(action())
        finally:
            _asking.discard(threading.current_thread())

    thread = threading.Thread(target=ask, daemon=True)
    _asking.add(thread)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


@atexit.register
def _await_answers() -> None:
    """A thread that comes back from torch's C++ code when the interpreter is gone ends the process
    with an abort.
    """
    _is_over.set()
    end = time.monotonic() + GRACE
    while _asking and time.monotonic() < end:
        time.sleep(INTERVAL / 10)


class AbortKey:
    """The place in the store where the first rank to fail says why."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, reason: str) -> None:
        """Say why this rank gives up, if no other has before and the store can be reached."""

        def write() -> None:
            with suppress(RuntimeError):  # without the rank that kept the store, all others fail
                self._store.compare_set(_KEY, "", reason)

        _within(GRACE, write)

    def read(self) -> str | None:
        """Why the group has given up; None if it has not, or if the store does not answer."""
        return _within(GRACE, self._read)

    def _read(self) -> str | None:
        try:
            if not self._store.check([_KEY]):
                return None
            reason: str = self._store.get(_KEY).decode()
        except RuntimeError:
            return "the process that keeps the job's store (rank 0, or torchrun's agent) has ended"
        return reason

    def await_reason(self, seconds: float = GRACE) -> str | None:
        """The same, with some patience: who fails first may still be writing."""
        end = time.monotonic() + seconds
        while True:
            reason = self.read()
            if reason is not None or time.monotonic() > end:
                return reason
            time.sleep(INTERVAL / 2)


class Watch:
    """A thread that ends this process's waits once any rank has given up."""

    def __init__(self, key: AbortKey, break_waits: Callable[[], None]) -> None:
        self._key = key
        self._break_waits = break_waits
        #: Set while this process waits for a message.
        self._is_waiting = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Before a wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="penstock-watch", daemon=True)
            self._thread.start()
        self._is_waiting.set()

    def end(self) -> None:
        """After a wait."""
        self._is_waiting.clear()

    def _look(self) -> None:
        while True:
            self._is_waiting.wait()
            time.sleep(INTERVAL)
            if _is_over.is_set():
                return
            if self._is_waiting.is_set() and self._key.read() is not None:
                me = threading.current_thread()
                _asking.add(me)
                self._break_waits()
                _asking.discard(me)
