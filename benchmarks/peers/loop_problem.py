"""Scalar loops that the peers at `loops` run, as plain Python for one instance each.

A problem names its program and brings a column for each argument. For the gradients of the sum of
all results by all columns it also brings `bound`: how many iterations are enough, as some peers
must know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: How near a relaxation ends.
NEAR = 1e-4


def collatz(n: Any) -> Any:
    """Steps until a number is one: every instance has a trip count of its own."""
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count = count + 1
    return count


def relaxation(x: Any, target: Any, rate: Any) -> Any:
    """Go toward the target until it is near; gradients are taken through it."""
    while abs(target - x) > NEAR:
        x = x + rate * (target - x)
    return x


#: Each program with the names of its columns.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "collatz": (collatz, ("n",)),
    "relaxation": (relaxation, ("x", "target", "rate")),
}
