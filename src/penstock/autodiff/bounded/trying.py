"""`auto` on a CPU: ways that are predicted to be about as fast are tried, and the best is taken.

How long launches and copies take beside each other depends on caches, on sizes, and on what the
host has to do for each; predictions know little of that. Each way that may be the fastest is taken
by a few calls, forward and backward, and from then on the one that took the least time. On a GPU
predictions decide: there a way that was tried may leave a CUDA graph behind.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from penstock.autodiff.bounded.predicting import BACKWARD, History, Way, told
from penstock.autodiff.bounded.recomputing import Recomputing

if TYPE_CHECKING:
    from penstock.run.memory.policy import Policy

#: Calls that each way is tried by: the first may have to prepare what the others find.
CALLS = 2

#: A way may be the fastest if it is predicted to take at most so many times as long as the one that
#: is predicted to be, with forward and backward.
NEAR = 2.0


class Trials:
    """The seconds that calls took, by what they saved, about, and by the way that they took."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[float, ...]] = {}

    def order(self, key: Hashable, ways: Sequence[Way], forward: float) -> list[Way]:
        """All ways, the one to take first: one that has to be tried, or the fastest."""
        first = ways[0]
        if first.is_kept and not first.saves_rows:
            return list(ways)
        passes = (1 + BACKWARD) * forward
        near = [way for way in ways if passes + way.seconds <= NEAR * (passes + first.seconds)]
        untried = [way for way in near if len(self._of(key, way)) < CALLS]
        best = untried[0] if untried else min(near, key=lambda way: self.seconds(key, way))
        return [best, *(way for way in ways if way is not best)]

    def note(self, key: Hashable, way: Way, seconds: float) -> None:
        """A call has taken a way."""
        least = sorted((*self._of(key, way), seconds))[:CALLS]
        self._found[key, way.name] = tuple(least)

    def reason(self, key: Hashable, ways: Sequence[Way]) -> str:
        """Why the first of these ways is taken, where that is not because of predictions alone."""
        first = ways[0]
        if first.is_kept and not first.saves_rows:
            return ""
        taken = [(way, 1e3 * self.seconds(key, way)) for way in ways if self._of(key, way)]
        found = ", ".join(f"{way.name} {each:.3g} ms" for way, each in taken)
        found = f" Calls took, forward and backward: {found}." if found else ""
        is_tried = len(self._of(key, first)) < CALLS
        return " It is being tried, as predictions may be wrong." * is_tried + found

    def seconds(self, key: Hashable, way: Way) -> float:
        """The least that a call has taken; 0 where nothing is known."""
        return min(self._of(key, way), default=0.0)

    def _of(self, key: Hashable, way: Way) -> tuple[float, ...]:
        return self._found.get((key, way.name), ())


class Again(Recomputing):
    """Segments run again, as earlier calls suggest."""

    def __init__(self, policy: Policy, history: History, ways: list[Way], reason: str) -> None:
        super().__init__(policy)
        self.history, self.ways, self.reason = history, ways, reason

    @property
    def saved_bytes(self) -> int:
        """Bytes that its pages would have taken together."""
        return sum(segment.bytes for segment in self.segments)

    def explain(self) -> str:
        """What was chosen, and why."""
        return f"{super().explain()} {told(self.history, self.ways)}{self.reason}"
