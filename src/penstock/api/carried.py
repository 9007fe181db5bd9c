"""The state that a loop carries on, and the check that its types stay the same.

A plain tuple or list is spread over the parameters of the loop's functions, as in torch; any other
nested value is one argument and comes back in its own form. The types of the initial value are the
types of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.capture.leaves import same_type
from penstock.capture.loops import State, parameter_names
from penstock.capture.refusals import describe


class Carried:
    """The state of one running loop: its current value and the types that every value must have."""

    def __init__(self, value: Any, *, loop: str, function: str, fn: Callable[..., Any]) -> None:
        is_spread = loop == "while_loop" and type(value) in (tuple, list)
        names = parameter_names(fn, len(value) if is_spread else 1)
        self._state = State(value, loop, function, is_spread, names)
        #: What the last iteration returned, in the form of the initial value.
        self.value: Any = self._state.initial

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The current value as arguments of the loop's functions."""
        return tuple(self.value) if self._state.is_spread else (self.value,)

    def advance(self, returned: Any) -> None:
        """Take what the loop's function returned as the next value."""
        leaves = self._state.returned_leaves(returned)
        for number, (expected, leaf) in enumerate(zip(self._state.leaves, leaves, strict=True)):
            if not same_type(expected, leaf):
                raise self._state.error(describe(expected), describe(leaf), number)
        self.value = self._state.value(leaves)
