"""Arenas: tensors that hold one kind of value for many rows, in chunks that never move.

Rows are reached only through `gather` and `write`. A gather of consecutive slots inside one chunk
is a view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from penstock.plan.schedule import Chunk, Integers, Kind, Picks, Span, slot_count
from penstock.run.capturing import refuse_while_capturing
from penstock.run.host_memory import empty_on


class Mirror(NamedTuple):
    """A chunk of an arena, on some device."""

    arena: int
    chunk: int
    device: torch.device


_highest, _WITHOUT_SIGN = np.maximum.reduce, np.dtype(np.uint64)

#: Elements of given values up to which copying them costs next to nothing, and segments that are
#: computed again may keep them.
FEW = 1 << 14

#: A small number for each kind, which is compared faster.
_likenesses: dict[Kind, int] = {}


def likeness_of(kind: Kind) -> int:
    """The number of a kind."""
    return _likenesses.setdefault(kind, len(_likenesses))


class Arena:
    """The values of one kind."""

    def __init__(self, kind: Kind, number: int = 0) -> None:
        self.kind = kind
        self.number = number
        #: The same for all arenas of a kind.
        self.likeness = likeness_of(kind)
        self.dtype: torch.dtype = getattr(torch, kind.dtype, torch.float32)
        self.device = torch.device(kind.device)
        self.starts: list[int] = []
        self.chunks: list[torch.Tensor] = []
        #: Where the memory of chunks begins whose slots are used again.
        self.recycled: set[int] = set()
        #: Whether it holds one tensor at a time, taken over as it was made.
        self.is_held = False

    def install(self, start: int, values: torch.Tensor) -> None:
        """Take over a tensor as the chunk that starts at this slot."""
        self.starts.append(start)
        self.chunks.append(values)

    def hold(self, values: torch.Tensor) -> None:
        """Hold these values, and no others."""
        self.starts, self.chunks, self.is_held = [0], [values], True

    def cut(self, count: int) -> None:
        """Keep only the first `count` chunks."""
        del self.starts[count:]
        del self.chunks[count:]

    def grow(self, start: int, count: int) -> None:
        """A new chunk with room for `count` values."""
        self.install(start, self._new_chunk(count))

    def grow_over_given(self, count: int) -> None:
        """The same behind values that were all given: where these are few, they are copied to the
        new chunk, so that launches that read both find one chunk. GPUs have graphs, which know
        given chunks as they are.
        """
        held = sum(values.shape[0] for values in self.chunks)
        if held * prod(self.kind.shape) > FEW or self.device.type != "cpu":
            self.grow(held, count)
            return
        chunk = self._new_chunk(held + count)
        torch.cat(self.chunks, out=chunk[:held])
        self.starts, self.chunks = [0], [chunk]

    def _new_chunk(self, count: int) -> torch.Tensor:
        shape = (count, *self.kind.shape)
        chunk = empty_on(self.device, shape, self.dtype)
        # First: a chunk that others see and that is not recycled is an input.
        self.recycled.add(chunk.untyped_storage().data_ptr())
        return chunk

    def forget(self) -> None:
        """Let go of all values."""
        self.starts, self.chunks = [], []

    def index(self, slots: Integers) -> torch.Tensor:
        """Slots as an index tensor on the arena's device."""
        refuse_while_capturing()
        return torch.from_numpy(slots).to(self.device, non_blocking=True)

    def chunk_of(self, source: Span | Picks) -> int | None:
        """The position of the chunk that has all these slots; None where there is none."""
        if not slot_count(source):
            return None
        starts = self.starts
        if len(starts) == 1:
            return 0
        if type(source) is Span:
            number = bisect_right(starts, source.start) - 1
            highest = source.start - starts[number] + source.count - 1
        else:
            slots = source.slots  # type: ignore[union-attr]
            number = bisect_right(starts, slots[0]) - 1
            start = starts[number]
            # a slot below is a very large one without its sign
            highest = _highest((slots - start if start else slots).view(_WITHOUT_SIGN))
        return number if highest < self.chunks[number].shape[0] else None

    def is_given(self, chunk: int) -> bool:
        """Whether a chunk is an input, which nobody writes to."""
        return self.chunks[chunk].untyped_storage().data_ptr() not in self.recycled

    def gather(self, source: Span | Picks, rows: int = -1) -> torch.Tensor:
        """The values of slots, [count, *shape]; with a length [rows, length, *shape]."""
        if isinstance(source, Span):
            values = self._span(source)
        else:
            values = self._picks(source.slots)
        if source.length is None:
            return values
        return values.view(rows, source.length, *self.kind.shape)

    def _span(self, source: Span) -> torch.Tensor:
        if not source.count:
            return torch.empty((0, *self.kind.shape), dtype=self.dtype, device=self.device)
        number = bisect_right(self.starts, source.start) - 1
        start, chunk = self.starts[number], self.chunks[number]
        first = source.start - start
        if first + source.count <= chunk.shape[0]:
            return chunk[first : first + source.count]
        return self._picks(np.arange(source.start, source.start + source.count))

    def _picks(self, slots: Integers) -> torch.Tensor:
        lowest, highest = int(slots.min()), int(slots.max())
        first = bisect_right(self.starts, lowest) - 1
        last = bisect_right(self.starts, highest) - 1
        if first == last:
            start = self.starts[first]
            return self.chunks[first].index_select(0, self.index(slots - start if start else slots))
        return self._picks_from_many(slots, first, last)

    def _picks_from_many(self, slots: Integers, first: int, last: int) -> torch.Tensor:
        shape = (len(slots), *self.kind.shape)
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        chunk_of = np.searchsorted(self.starts, slots, side="right") - 1
        for number in range(first, last + 1):
            mine = np.flatnonzero(chunk_of == number)
            if len(mine):
                picked = self.index(slots[mine] - self.starts[number])
                values.index_copy_(0, self.index(mine), self.chunks[number].index_select(0, picked))
        return values

    def write(self, target: Span | Picks, values: torch.Tensor) -> None:
        """Put values into slots; a block may have given back a view of what it read here."""
        if not slot_count(target):
            return
        if values.untyped_storage().data_ptr() in self.recycled:
            values = values.clone()
        if isinstance(target, Span):
            number = bisect_right(self.starts, target.start) - 1
            first = target.start - self.starts[number]
            chunk = self.chunks[number]
            if first + target.count <= chunk.shape[0]:
                chunk[first : first + target.count].copy_(values)
                return
            slots = np.arange(target.start, target.start + target.count)
        else:
            slots = target.slots
        self._scatter(slots, values)

    def _scatter(self, slots: Integers, values: torch.Tensor) -> None:
        inside = self.chunk_of(Picks(self.number, slots))
        if inside is not None:
            index = self.index(slots - self.starts[inside])
            self.chunks[inside].index_copy_(0, index, values)
            return
        chunk_of = np.searchsorted(self.starts, slots, side="right") - 1
        for number in np.unique(chunk_of):
            mine = np.flatnonzero(chunk_of == number)
            index = self.index(slots[mine] - self.starts[number])
            part = values if len(mine) == len(slots) else values.index_select(0, self.index(mine))
            self.chunks[number].index_copy_(0, index, part)


def merged(chunks: Iterable[Chunk]) -> tuple[Chunk, ...]:
    """Chunks of one arena that follow each other become one."""
    merged: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        parts = merged.setdefault(chunk.arena, [])
        if parts and parts[-1].start + parts[-1].count == chunk.start:
            last = parts.pop()
            chunk = last._replace(count=last.count + chunk.count)
        parts.append(chunk)
    return tuple(part for parts in merged.values() for part in parts)
