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
from weakref import WeakMethod, WeakSet, finalize

from torch.distributed.distributed_c10d import Store

#: Seconds between two looks, and how long to look for the reason of a wait that has failed.
INTERVAL, GRACE = 0.1, 1.0

_KEY = "abort"

T = TypeVar("T")


#: Threads that are in torch's C++ code: they ask a store and have no answer yet, or end waits.
_asking: set[threading.Thread] = set()
#: The watches of all groups that are in use.
_watches: WeakSet[Watch] = WeakSet()


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
def _end_threads() -> None:
    """A thread that comes back from torch's C++ code when the interpreter is gone ends the process
    with an abort.
    """
    end = time.monotonic() + GRACE
    for watch in list(_watches):
        watch.close(end - time.monotonic())
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
    """A thread that ends this process's waits once any rank has given up.

    The thread holds nothing of whoever waits, and ends when that is gone.
    """

    def __init__(self, key: AbortKey, break_waits: Callable[[], None]) -> None:
        self._waiting = _Waiting(key, WeakMethod(break_waits))
        self._thread: threading.Thread | None = None
        finalize(self, self._waiting.close).atexit = False
        _watches.add(self)

    def begin(self) -> None:
        """Before a wait."""
        if self._thread is None:
            look = self._waiting.look
            self._thread = threading.Thread(target=look, name="penstock-watch", daemon=True)
            self._thread.start()
        self._waiting.is_waiting.set()

    def end(self) -> None:
        """After a wait."""
        self._waiting.is_waiting.clear()

    def close(self, seconds: float) -> None:
        """Let the thread end, and wait for it for so long at most."""
        self._waiting.close()
        if self._thread is not None:
            self._thread.join(max(seconds, 0))


class _Waiting:
    """What the thread of a watch knows."""

    def __init__(self, key: AbortKey, break_waits: WeakMethod[Callable[[], None]]) -> None:
        self._key = key
        self._break_waits = break_waits
        #: Set while this process waits for a message, and when nobody will any more.
        self.is_waiting = threading.Event()
        self._is_over = threading.Event()

    def close(self) -> None:
        """Nobody will wait any more."""
        self._is_over.set()
        self.is_waiting.set()

    def look(self) -> None:
        """Look for the reason to end a wait, as long as there are any."""
        while True:
            self.is_waiting.wait()
            if self._is_over.wait(INTERVAL):
                return
            if self.is_waiting.is_set() and self._key.read() is not None:
                self._end_waits()

    def _end_waits(self) -> None:
        break_waits, me = self._break_waits(), threading.current_thread()
        if break_waits is not None:
            _asking.add(me)
            break_waits()
            _asking.discard(me)
