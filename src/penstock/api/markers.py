"""Marks that users put on values: shared by all instances, or not traced at all."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.capture.converted.callees import OPTED_OUT
from penstock.capture.static import Static

Fn = TypeVar("Fn")


class Shared:
    """A value that is the same for every instance of a call."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "shared(...)"


def shared(x: Any) -> Shared:
    """Mark a column entry as the same for all instances.

    It equals a column that holds `x` once per instance; its tensors are not copied per instance.

    Gradients flow to `x`, summed over the instances.

    >>> shared(3).value
    3
    """
    return Shared(x)


def unshared(value: Any) -> Any:
    """The value without that mark."""
    return value.value if isinstance(value, Shared) else value


def static(x: Any) -> Static:
    """Mark a value as not traced: another value means another program.

    The function receives `x` itself. No gradients flow to it.

    >>> static("relu").value
    'relu'
    """
    return Static(x)


def do_not_convert(fn: Fn) -> Fn:
    """Mark a function so that its Python control flow is not converted in programs.

    Calling it equals calling the function. In a program its `if`, `while` and `for` run while
    tracing, and a traced value cannot decide on them.

    >>> @do_not_convert
    ... def layers(depth):
    ...     return list(range(depth))
    >>> layers(2)
    [0, 1]
    """
    inner: Any = getattr(fn, "__func__", fn)
    setattr(inner, OPTED_OUT, True)
    return fn
