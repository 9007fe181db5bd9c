"""Rows of large tensors on the host, brought to a device before they are wanted.

Rows are read one after the other, forwards or backwards. Memory around a row comes in one copy, on
a stream of its own, and what lies behind it in the direction of reading is asked for at the same
time. A few such pieces are on the device at once. Order is kept by events: a piece goes to memory
that launches have let go, and launches that read it wait for its copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch

from penstock.run.memory import pinned

#: Bytes that come in one copy, about, and how many pieces of a tensor stay on the device.
PIECE, MOST_PIECES = 16 << 20, 3


class Place(NamedTuple):
    """A piece of the memory of a tensor: where that begins, how long pieces are, which it is."""

    memory: int
    size: int
    number: int

    def beside(self, step: int) -> Place:
        """The piece so many further on."""
        return self._replace(number=self.number + step)


class Source(NamedTuple):
    """Memory of the host that is read as numbers of one type."""

    memory: int
    dtype: torch.dtype


@dataclass(slots=True, eq=False)
class ReadAhead:
    """The pieces of host memory that one run has on a device."""

    device: torch.device
    #: Those here or on their way, the one used last at the end.
    pieces: dict[Place, pinned.Incoming] = field(default_factory=dict)
    #: For each memory the piece that was read last, and in which direction.
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: For each memory and type the numbers of the piece that was read last, and where they begin.
    reading: dict[Source, tuple[torch.Tensor, int]] = field(default_factory=dict)

    def fetch(self, values: torch.Tensor) -> torch.Tensor:
        """The values on the device, for launches that are asked for from now on."""
        source = Source(values.untyped_storage().data_ptr(), values.dtype)
        numbers, first = self.reading.get(source, (None, 0))
        offset, count = int(values.storage_offset()) - first, values.numel()
        is_open = numbers is not None and offset >= 0 and offset + count <= len(numbers)
        if not is_open or not values.is_contiguous():
            return self._fetch(values, source)
        assert numbers is not None
        return numbers.as_strided(values.shape, values.stride(), offset)

    def _fetch(self, values: torch.Tensor, source: Source) -> torch.Tensor:
        """The same where another piece is read than before."""
        start = int(values.storage_offset()) * values.element_size()
        size = PIECE // max(values.nbytes, 1) * values.nbytes
        whole = values.untyped_storage().nbytes()
        is_apt = size and whole >= 2 * size and not start % values.nbytes
        if not is_apt or not values.is_contiguous():
            return values.to(self.device, non_blocking=True)
        place = Place(source.memory, size, start // size)
        piece = self._bring(values, place)
        self._bring_ahead(values, place, whole)
        part, each = piece.settle(), values.element_size()
        numbers = part[: len(part) // each * each].view(values.dtype)
        self.reading[source] = numbers, place.number * size // each
        return self.fetch(values)

    def _bring_ahead(self, values: torch.Tensor, place: Place, whole: int) -> None:
        """Ask for the piece that is likely to be read next; forget those that are far away."""
        is_last = (place.number + 1) * place.size >= whole
        before, step = self.last.get(place.memory, (place.number, -1 if is_last else 1))
        if before != place.number:
            step = 1 if before < place.number else -1
        self.last[place.memory] = place.number, step
        following = place.beside(step)
        if 0 <= following.number * place.size < whole and following not in self.pieces:
            self._bring(values, following)
        mine = [each for each in self.pieces if each.memory == place.memory]
        for each in mine[: max(0, len(mine) - MOST_PIECES)]:
            del self.pieces[each]

    def _bring(self, values: torch.Tensor, place: Place) -> pinned.Incoming:
        found = self.pieces.pop(place, None)
        if found is None:
            source = _bytes_of(values, place)
            found = pinned.upload(source, self.device, upload_stream(self.device))
        self.pieces[place] = found
        return found

    def close(self) -> None:
        """Nothing is read for now: wait until all copies are done, as the memory is the caller's
        and he may write to it.
        """
        for piece in self.pieces.values():
            piece.wait()
        self.pieces, self.last, self.reading = {}, {}, {}


def _bytes_of(values: torch.Tensor, place: Place) -> torch.Tensor:
    """A piece of the memory that a tensor lies in."""
    storage = values.untyped_storage()
    first = place.number * place.size
    size = min(place.size, storage.nbytes() - first)
    return torch.empty(0, dtype=torch.uint8).set_(storage, first, (size,), (1,))


@cache
def upload_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which rows come: pages that come back have another, and are many."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
