"""Who is asked, on this thread, about calls that could be units."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class CallHook(Protocol):
    """A recording scope, as patched functions see it."""

    def on_call(
        self,
        original: Callable[..., Any],
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        """Whether the call was recorded, and what it gives then.

        `original` is the function that would run. A method's object, and the module of a module
        call, is `owner`; `args` come without it. Of plain functions `owner` is None.
        """


class _State(threading.local):
    #: Asked about every call; None where calls simply run.
    hook: CallHook | None = None


state = _State()


@contextmanager
def asking(hook: CallHook | None) -> Iterator[None]:
    """Ask `hook` about calls on this thread."""
    before, state.hook = state.hook, hook
    try:
        yield
    finally:
        state.hook = before


def paused() -> Any:
    """Let calls on this thread simply run."""
    return asking(None)
