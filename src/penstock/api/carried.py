"""The state that a loop carries on, and the check that its types stay the same.

A plain tuple or list is spread over the parameters of the loop's functions, as in torch; any other
nested value is one argument and comes back in its own form. The types of the initial value are the
types of all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock.calls.structure import (
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    unflatten,
)
from penstock.capture.leaves import as_values, describe, same_type
from penstock.capture.location import user_line
from penstock.errors import LoopTypeError, report


class Carried:
    """The state of one running loop: its current value and the types that every value must have."""

    def __init__(self, value: Any, *, loop: str, function: str, fn: Callable[..., Any]) -> None:
        self._loop = loop
        self._function = function
        self._is_spread = loop == "while_loop" and type(value) in (tuple, list)
        self._names = parameter_names(fn, len(value) if self._is_spread else 1, "carried_inputs")
        self._initial = as_values(value, f"{loop}: the carried state", self._names[0])
        self._leaves, self._structure = flatten(self._initial)
        #: What the last iteration returned, in the form of the initial value.
        self.value: Any = self._initial

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The current value as arguments of the loop's functions."""
        return tuple(self.value) if self._is_spread else (self.value,)

    def advance(self, returned: Any) -> None:
        """Take what the loop's function returned as the next value."""
        if self._is_spread and type(returned) in (tuple, list):
            returned = type(self._initial)(returned)
        returned = as_values(returned, f"{self._loop}: what {self._function} returns", "returned")
        try:
            leaves = flatten_like(self._structure, returned)
        except StructureMismatchError:
            raise self._error(describe(self._initial), describe(returned)) from None
        for number, (expected, leaf) in enumerate(zip(self._leaves, leaves, strict=True)):
            if not same_type(expected, leaf):
                raise self._error(describe(expected), describe(leaf), self._paths()[number])
        self.value = unflatten(self._structure, leaves)

    def _paths(self) -> list[str]:
        if not self._is_spread:
            return leaf_paths(self._initial, self._names[0])
        named = zip(self._initial, self._names, strict=True)
        return [path for value, name in named for path in leaf_paths(value, name)]

    def _error(self, expected: str, returned: str, path: str = "") -> LoopTypeError:
        shown = f"{path}   " if path else ""
        wanted = f"{expected} for {path}" if path else expected
        return LoopTypeError(
            report(
                f"{self._loop}: {self._function} must return the same types it receives.",
                where=user_line(),
                facts=[
                    ("carried input", f"{shown}{expected}"),
                    ("returned value", f"{shown}{returned}"),
                ],
                todo=f"Make {self._function} return {wanted}, or change the initial value.",
            )
        )


def parameter_names(fn: Callable[..., Any], count: int, fallback: str) -> list[str]:
    """The names that `fn` gives its first `count` arguments, else `fallback[0]`, ..."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), fallback)
    return [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(count)]
