"""What `ps.function` and `ps.map` refuse before anything is traced."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import Any

from penstock.capture.location import user_line
from penstock.errors import ArgumentError, report
from penstock.plan.limits import DEPTH


def check_depth(max_depth: Any) -> None:
    """Refuse a limit on recursion under which no call could be made."""
    if isinstance(max_depth, int) and not isinstance(max_depth, bool) and max_depth >= 1:
        return
    raise ArgumentError(
        report(
            "function: max_depth must be a whole number of at least 1.",
            where=user_line(),
            facts=[("max_depth", repr(max_depth)), ("expected", "1 or more")],
            todo=f"Leave it out to allow {DEPTH} nested calls.",
        )
    )


def check_traceable(fn: Any) -> None:
    """Refuse what is no Python function: a module, a builtin, anything without a signature."""
    if isinstance(fn, FunctionType | MethodType | partial) or hasattr(fn, "__wrapped__"):
        return
    raise ArgumentError(
        report(
            "function: only a Python function or method can be a program.",
            where=user_line(),
            facts=[("given", type(fn).__name__), ("expected", "a function written in Python")],
            todo="Decorate a module's forward, or wrap a builtin: ps.function(lambda x: ...).",
        )
    )


def not_a_function(fn: Any) -> ArgumentError:
    """What is to be mapped cannot be called."""
    return ArgumentError(
        report(
            "map: only functions and modules can be mapped.",
            where=user_line(),
            facts=[
                ("fn", getattr(fn, "__qualname__", type(fn).__name__)),
                ("expected", "a ps.function, an nn.Module, or any function for one instance"),
            ],
            todo="Pass the function first, then one column per parameter.",
        )
    )


def errors_need_a_list(out: str) -> ArgumentError:
    """Exceptions cannot be stacked."""
    return ArgumentError(
        report(
            "map: exceptions can be returned in a list only.",
            where=user_line(),
            facts=[("on_error", "'return'"), ("out", repr(out))],
            todo='Use out="list", or let the first exception be raised.',
        )
    )
