"""Scalar loops that the peers at `loops` run, as plain Python for one instance each.

A problem names its program and brings a column for each argument. For gradients it also brings
`weights`: those of the final values in a sum, whose gradient by `rate` is asked for, and `bound`:
how many iterations are enough, as some peers must know.
"""

from __future__ import annotations

from collections.abc import Callable
from math import tanh
from typing import Any

#: Where a relaxation ends.
NEAR = 0.01


def counting(limit: float) -> float:
    """A trivial body."""
    x = 0.0
    while x < limit:
        x = x + 1
    return x


def collatz(n: int) -> int:
    """Steps until a number reaches one: every instance has a trip count of its own."""
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count


def relaxation(x: float, rate: float) -> float:
    """Down to near zero, faster or slower; gradients are taken through it."""
    while abs(x) > NEAR:
        x = x - rate * tanh(x)
    return x


#: Each program with the names of its columns.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "counting": (counting, ("limit",)),
    "collatz": (collatz, ("n",)),
    "relaxation": (relaxation, ("x", "rate")),
}
