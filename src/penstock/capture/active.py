"""Which tracer, if any, is at work on this thread, and whether plain Python semantics were asked
for.

The combinators ask here whether to record or to run. Nothing else is decided in this module.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.ir.devices import Device

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class _State(threading.local):
    #: The innermost tracer comes last; empty outside any trace.
    tracers: list[Tracer]
    #: True while `set_eager(True)` holds on this thread.
    eager: bool
    #: What the `ps.device` around says; None outside of all.
    device: Device | None

    def __init__(self) -> None:
        self.tracers = []
        self.eager = False
        self.device = None


state = _State()


def active_tracer() -> Tracer | None:
    """The tracer that records on this thread, or None where code simply runs."""
    return state.tracers[-1] if state.tracers else None


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Make `tracer` the active one."""
    state.tracers.append(tracer)
    try:
        yield
    finally:
        state.tracers.pop()
