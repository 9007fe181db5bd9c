"""Bounds of the planner. They are part of the plan, never of timing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache

#: Nested calls that a function may make unless it says otherwise.
DEPTH = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the planner may go."""

    #: Over this many live rows only the newest calls go on.
    live_rows: int = 1 << 20
    #: The same for the rows of one loop: how far control runs ahead of its data.
    loop_rows: int = 1 << 16
    #: How many rows go on at a time then.
    admitted_rows: int = 1 << 14
    #: Over this many live rows planning stops with an error.
    most_rows: int = 1 << 22
    #: Over this many nested calls planning stops with an error; None: the function's `max_depth`.
    depth: int | None = None

    def with_depth(self, depth: int) -> Limits:
        """These limits with that depth, where they leave it open."""
        return self if self.depth is not None else _with_depth(self, depth)


@lru_cache(maxsize=64)
def _with_depth(limits: Limits, depth: int) -> Limits:
    return replace(limits, depth=depth)


_DEFAULT = Limits()
_current: ContextVar[Limits] = ContextVar("limits", default=_DEFAULT)


def current_limits() -> Limits:
    """The limits that hold here."""
    return _current.get()


@contextmanager
def limits(**changes: int) -> Iterator[None]:
    """Change limits for the calls made inside."""
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield
    finally:
        _current.reset(token)
