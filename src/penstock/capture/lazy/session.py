"""Opens and closes recording scopes.

While a scope is open, every torch call of its thread is recorded. When it closes, what is still
recorded is computed; tensors that are alive then keep their values, all others are let go.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from penstock.capture.lazy.active import state
from penstock.capture.lazy.library import library
from penstock.capture.lazy.scope import Scope
from penstock.run.seeds import Seed

#: How ready steps are ordered; see `plan.policies`.
policy: ContextVar[str] = ContextVar("policy", default="rank")


@contextmanager
def open_scope(granularity: str, seed: Seed, recorder: Any = None) -> Iterator[Scope]:
    """A scope on this thread; user code must run inside `recording_in`."""
    library.enter()
    collector = _CollectorPause()
    scope = Scope(granularity, policy.get(), seed, recorder)
    state.scope = scope
    try:
        yield scope
        scope.flush()
    except BaseException as error:
        scope.failure = error
        raise
    finally:
        state.scope = None
        scope.close()
        library.leave()
        collector.end()


@contextmanager
def recording_in(scope: Scope) -> Iterator[None]:
    """Run user code: its torch calls go to the scope."""
    with scope.mode:
        scope.function_modes = torch._C._len_torch_function_stack()
        scope.is_recording = True
        yield


class _CollectorPause:
    """Keeps Python's collector of cycles away while recorded tensors pile up.

    It would look at every one of them again and again; none is part of a cycle. Reference counts
    work as ever.
    """

    _lock = threading.Lock()
    _pauses = 0
    _was_enabled = False

    def __init__(self) -> None:
        cls = type(self)
        with cls._lock:
            if cls._pauses == 0:
                cls._was_enabled = gc.isenabled()
                gc.disable()
            cls._pauses += 1

    def end(self) -> None:
        """Let it work again, once all pauses are over."""
        cls = type(self)
        with cls._lock:
            cls._pauses -= 1
            if cls._pauses == 0 and cls._was_enabled:
                gc.enable()
