"""What a traced branch or loop must not do: change what it did not make itself.

A traced body runs while tracing, whichever way a run will go, so a change that can be seen from
outside would always happen, and once. Containers that the body made itself are free to change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock.capture.active import active_tracer
from penstock.capture.converted.lists import TracedList
from penstock.capture.location import user_place
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.restarts import Restart
from penstock.capture.tensor_array import TensorArray
from penstock.errors import PenstockError, SideEffectError, UnsupportedSyntaxError, report


def fresh(value: Any) -> Any:
    """A container that has just been made."""
    tracer = active_tracer()
    return value if tracer is None else tracer.scope.own(value)


def changes(target: Any, text: str) -> None:
    """Before an assignment to an item or attribute of `target`."""
    tracer = active_tracer()
    if tracer is None or tracer.scope.parent is None or tracer.scope.owns(target):
        return
    if isinstance(target, torch.Tensor | TensorArray | TracedList):
        return
    raise SideEffectError(
        report(
            f"`{text} = ...` inside a traced branch or loop would change what is outside.",
            where=user_place(),
            facts=[("changed", f"a {type(target).__name__}"), ("made", "outside of the branch")],
            todo="Assign to a variable, and store it after the branch or loop.",
        )
    )


def changes_by_call(owner: Any, method: str) -> None:
    """Before a call of a method that changes a list, dict or set."""
    tracer = active_tracer()
    if tracer is None or tracer.scope.parent is None or tracer.scope.owns(owner):
        return
    raise SideEffectError(
        report(
            f"{method} inside a traced branch or loop would change what is outside.",
            where=user_place(),
            facts=[("changed", f"a {type(owner).__name__}"), ("made", "outside of the branch")],
            todo="Use a list made in the same function, which becomes a ps.TensorArray; or return "
            "the value and store it after the branch or loop.",
        )
    )


def changed_list(name: str, value: Any) -> SideEffectError:
    """A list that belongs to the caller was to grow in a traced branch or loop."""
    return SideEffectError(
        report(
            f"{name} belongs to the caller; a traced branch or loop must not make it longer.",
            where=user_place(),
            facts=[("changed", f"the argument {name}"), ("allowed", "lists made in this function")],
            todo=f"Copy it first ({name} = list({name})) and return it.",
        )
    )


def writes(name: str, word: str) -> None:
    """Before an assignment to a name that is declared global or nonlocal."""
    tracer = active_tracer()
    if tracer is None or tracer.scope.parent is None:
        return
    raise SideEffectError(
        report(
            f"{name} is {word}: a traced branch or loop must not assign it.",
            where=user_place(),
            facts=[("assigned", f"{word} {name}"), ("allowed", "variables of the same function")],
            todo="Return the value from the function, and assign it where it belongs.",
        )
    )


def raises() -> None:
    """Before a `raise`."""
    tracer = active_tracer()
    if tracer is None or tracer.scope.parent is None:
        return
    raise UnsupportedSyntaxError(
        report(
            "`raise` inside a traced branch or loop: only a run knows whether to get there.",
            where=user_place(),
            facts=[("raise", "while tracing"), ("decided", "by a traced value")],
            todo="Write `if condition: raise ...` by itself, or `assert`: a run checks them.",
        )
    )


@contextmanager
def trying() -> Iterator[None]:
    """The body of a `try` with handlers."""
    tracer = active_tracer()
    if tracer is None:
        yield
        return
    scope = tracer.scope
    scope.tries += 1
    try:
        yield
    finally:
        scope.tries -= 1


def refuse_in_try(what: str) -> None:
    """Before traced control flow; its errors come at run time, when no handler is there."""
    tracer = active_tracer()
    if tracer is None or not tracer.scope.tries:
        return
    raise UnsupportedSyntaxError(
        report(
            f"{what} on a traced value inside `try`: its errors come at run time.",
            where=user_place(),
            facts=[("handlers", "run while tracing"), ("errors", "come when the program runs")],
            todo="Move the `try` out of the program, or decide before what could fail.",
        )
    )


def unless_refused() -> None:
    """At the start of a handler: what tracing refuses is not the user's to handle."""
    error = sys.exception()
    if active_tracer() is not None and isinstance(
        error, PenstockError | Restart | UnresolvedRecursion
    ):
        raise error
