"""Marks that users put on values: shared by all instances, or not traced at all."""

from __future__ import annotations

from typing import Any

from penstock.capture.static import Static


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


def static(x: Any) -> Static:
    """Mark a value as not traced: another value means another program.

    The function receives `x` itself. No gradients flow to it.

    >>> static("relu").value
    'relu'
    """
    return Static(x)
