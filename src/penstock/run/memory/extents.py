"""Which bytes of a file or a slab are in use: first fit, and free neighbours become one."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

#: Extents begin at multiples of this: enough for any dtype, and for fast copies.
ALIGNMENT = 64


class Extent(NamedTuple):
    """Some bytes in a row."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """Where the next bytes begin."""
        return self.start + self.size


class Extents:
    """The free extents of some room that may grow."""

    def __init__(self) -> None:
        #: In order; no two of them touch.
        self.free: list[Extent] = []
        self.end = 0

    def take(self, size: int) -> Extent | None:
        """Room for so many bytes; None where there is none."""
        size = rounded(size)
        for place, extent in enumerate(self.free):
            if extent.size >= size:
                rest = Extent(extent.start + size, extent.size - size)
                self.free[place : place + 1] = [rest] if rest.size else []
                return Extent(extent.start, size)
        return None

    def grow(self, size: int) -> None:
        """So many more bytes at the end."""
        self.end += size
        self.give_back(Extent(self.end - size, size))

    def give_back(self, extent: Extent) -> None:
        """The bytes are not used any more."""
        insort(self.free, extent)
        place = self.free.index(extent)
        self._merge(place)
        if place:
            self._merge(place - 1)

    def _merge(self, place: int) -> None:
        """Make a free extent and the one after it one, if they touch."""
        here = self.free[place]
        after = self.free[place + 1] if place + 1 < len(self.free) else None
        if after is not None and here.end == after.start:
            self.free[place : place + 2] = [Extent(here.start, here.size + after.size)]

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self.end - sum(extent.size for extent in self.free)


def rounded(size: int) -> int:
    """The size with what is lost behind it."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
