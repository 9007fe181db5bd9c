"""The calls that fibers run: what one call, one wait and all calls of one `run` know.

Calls made by a call are a group of their own, below it. The order of a call is the path of places
down to it, which sorts calls as a plain loop would run them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any, NamedTuple

from greenlet import greenlet

from penstock.capture.lazy.thread_state import SavedState

#: How often a call that is being stopped may try to wait once more.
PATIENCE = 100


class Outcome(NamedTuple):
    """What became of one call: its value, or what it raised."""

    value: Any
    error: BaseException | None


class Group:
    """The calls of one `run`."""

    __slots__ = (
        "context",
        "describe",
        "error",
        "first",
        "outcomes",
        "parent",
        "remaining",
        "returns_errors",
    )

    def __init__(
        self,
        parent: Call | None,
        count: int,
        returns_errors: bool,
        describe: Callable[[int], str],
    ) -> None:
        #: The call that waits for them; None for the outermost.
        self.parent = parent
        self.returns_errors = returns_errors
        #: The note on an exception of the call of that number.
        self.describe = describe
        #: Each call runs in a copy.
        self.context = copy_context()
        self.outcomes: list[Outcome | None] = [None] * count
        #: How many calls have not ended, and the place of the first of them.
        self.remaining = count
        self.first = 0
        #: Why all of them were stopped.
        self.error: BaseException | None = None

    def end(self, place: int, outcome: Outcome) -> None:
        """A call has ended."""
        self.outcomes[place] = outcome
        self.remaining -= 1
        while self.first < len(self.outcomes) and self.outcomes[self.first] is not None:
            self.first += 1

    def is_inside(self, outer: Group) -> bool:
        """Whether these are calls of `outer`, or made by calls of it at whatever depth."""
        group: Group | None = self
        while group is not None and group is not outer:
            group = None if group.parent is None else group.parent.group
        return group is not None


class Call:
    """One call, and its fiber once it has begun."""

    __slots__ = (
        "function",
        "group",
        "is_stopping",
        "number",
        "order",
        "patience",
        "place",
        "saved",
        "where",
    )

    def __init__(self, group: Group, place: int, number: int, function: Callable[[], Any]) -> None:
        parent = group.parent
        self.group = group
        self.place = place
        self.number = number
        self.function = function
        self.order: tuple[int, ...] = (place,) if parent is None else (*parent.order, place)
        #: The state of the thread to begin or go on with; None for the one it was found in.
        self.saved: SavedState | None = None if parent is None else parent.saved
        #: The greenlet to switch to while it is suspended.
        self.where: greenlet | None = None
        self.is_stopping = False
        self.patience = PATIENCE

    def has_turn(self) -> bool:
        """Whether a plain loop would be at this call: all calls before it have ended."""
        call: Call | None = self
        while call is not None and call.group.first == call.place:
            call = call.group.parent
        return call is None


class Wait:
    """A call that waits: `flush` sets the answer, or the error to raise in the call."""

    __slots__ = ("answer", "call", "error", "number", "order", "request")

    def __init__(self, call: Call, request: Any) -> None:
        self.call = call
        self.order = call.order
        self.number = call.number
        self.request = request
        self.answer: Any = None
        self.error: BaseException | None = None
