"""Which input dimensions are dynamic, and the signal that one more must be.

A trace starts with the dimensions that are known to differ. When user code uses the size of a
static one as a value, the trace is given up and begun again with that dimension dynamic. The set
only grows, so this ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.capture.traced_tensor import Origins


class Restart(BaseException):
    """Trace again with these input dimensions dynamic. No user code should catch it."""

    def __init__(self, dimensions: Origins) -> None:
        super().__init__("a dimension must be dynamic")
        self.dimensions = dimensions


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What one attempt to trace takes for granted."""

    dynamic: Origins
    #: Tried as dynamic without success: these stay static.
    pinned: Origins = frozenset()

    def require_dynamic(self, origins: Origins) -> None:
        """Begin again unless these dimensions are dynamic already, or cannot be."""
        missing = leading(origins) - self.dynamic - self.pinned
        if missing:
            raise Restart(missing)


def leading(places: Origins) -> Origins:
    """Those that are leading dimensions: only they are stored flattened, and so may be dynamic."""
    return frozenset(place for place in places if place[1] == 0)
