"""Bytes of CUDA tensors in pinned host memory, copied on streams of their own.

Copies out and in have a stream each; order is kept by events alone, so the host never waits:

* a copy out starts after the launch that made the bytes, and the stream of launches waits for it
  before the bytes' memory is used again;
* a copy in goes to memory that the stream of launches has let go by then, and launches that read
  it wait for the copy;
* pinned bytes are written again only after the copy that read them.

Device memory comes from torch's allocator on the stream of launches and is given back there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import NamedTuple

import torch

from penstock.errors import SpillError, report
from penstock.run.memory.extents import Extent, Extents, rounded
from penstock.run.memory.parcels import Arriving, Away
from penstock.run.memory.policy import in_words

#: Pinned memory is asked for in pieces of this size, which stay for later calls.
PIECE = 1 << 30


class Region(NamedTuple):
    """Pinned bytes."""

    piece: int
    extent: Extent
    values: torch.Tensor


class Slab:
    """The pinned memory of the process; it grows and is never given back."""

    def __init__(self) -> None:
        self.pieces: list[torch.Tensor] = []
        self.extents: list[Extents] = []
        #: Copies that may still read bytes that were given back.
        self.fences: list[tuple[int, Extent, torch.cuda.Event]] = []
        #: Runs of several threads share the slab.
        self.lock = Lock()

    def take(self, size: int) -> tuple[Region, list[torch.cuda.Event]]:
        """Room for so many bytes, and what to wait for before it is written."""
        with self.lock:
            region = self._find(size) or self._grow(size)
            self.fences = [fence for fence in self.fences if not fence[2].query()]  # type: ignore[no-untyped-call]
            waits = [
                event
                for piece, extent, event in self.fences
                if piece == region.piece
                and extent.start < region.extent.end
                and region.extent.start < extent.end
            ]
        return region, waits

    def give_back(self, region: Region, last: torch.cuda.Event) -> None:
        """The bytes may be written again after this event."""
        with self.lock:
            self.fences.append((region.piece, region.extent, last))
            self.extents[region.piece].give_back(region.extent)

    def _find(self, size: int) -> Region | None:
        for number, extents in enumerate(self.extents):
            extent = extents.take(size)
            if extent is not None:
                return Region(number, extent, self.pieces[number][extent.start : extent.end])
        return None

    def _grow(self, size: int) -> Region:
        count = max(PIECE, rounded(size))
        try:
            piece = _pinned(count)
        except RuntimeError as error:
            raise _no_room(error, count, sum(map(len, self.pieces))) from error
        self.pieces.append(piece)
        self.extents.append(Extents())
        self.extents[-1].grow(count)
        found = self._find(size)
        assert found is not None
        return found


def _pinned(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


_slab = Slab()


@cache
def copy_streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The streams on which bytes leave a device and come back."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class PinnedMemory:
    """Where the bytes of one device go."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.slab = _slab
        self.outward, self.inward = copy_streams(device)

    def send(self, parts: Sequence[torch.Tensor]) -> Away:
        """Start to copy bytes to the host."""
        launches = torch.cuda.current_stream(self.device)
        taken = [self.slab.take(len(part)) for part in parts]
        self.outward.wait_event(launches.record_event())
        for _, waits in taken:
            for event in waits:
                self.outward.wait_event(event)
        with torch.cuda.stream(self.outward):
            for part, (region, _) in zip(parts, taken, strict=True):
                _copy(part, region.values[: len(part)])
        regions = [region for region, _ in taken]
        sizes = [len(part) for part in parts]
        return _Out(self, regions, sizes, self.outward.record_event(), list(parts))


@dataclass(slots=True, eq=False)
class _Out:
    """Bytes in pinned memory, or on their way there."""

    memory: PinnedMemory
    regions: list[Region]
    sizes: list[int]
    #: After the last copy that has touched the pinned bytes.
    last: torch.cuda.Event
    #: The originals, until it is settled: their memory must not be used again before.
    parts: list[torch.Tensor] = field(default_factory=list)

    def settle(self) -> None:
        """Let the stream of launches wait for the copy, if that is not done yet."""
        if self.parts:
            torch.cuda.current_stream(self.memory.device).wait_event(self.last)
            self.parts = []

    def bring(self) -> Arriving:
        """Start to copy the bytes back."""
        device, inward = self.memory.device, self.memory.inward
        parts = [_new(size, device) for size in self.sizes]
        inward.wait_event(torch.cuda.current_stream(device).record_event())
        inward.wait_event(self.last)
        with torch.cuda.stream(inward):
            for part, region in zip(parts, self.regions, strict=True):
                _copy(region.values[: len(part)], part)
        self.last = inward.record_event()
        return _In(device, parts, self.last)

    def free(self) -> None:
        """The pinned bytes may be written again, once they are copied."""
        self.settle()
        for region in self.regions:
            self.memory.slab.give_back(region, self.last)
        self.regions = []

    def __del__(self) -> None:
        if self.parts:
            self.last.synchronize()
        if self.regions:
            self.free()


@dataclass(slots=True, eq=False)
class _In:
    """Bytes on their way back."""

    device: torch.device
    parts: list[torch.Tensor]
    done: torch.cuda.Event

    def settle(self) -> list[torch.Tensor]:
        """Let the stream of launches wait for the copy."""
        torch.cuda.current_stream(self.device).wait_event(self.done)
        parts, self.parts = self.parts, []
        return parts

    def __del__(self) -> None:
        if self.parts:  # nobody has waited for the copy: the memory must not be used again before
            self.done.synchronize()


def _new(size: int, device: torch.device) -> torch.Tensor:
    """Memory that launches which were asked for earlier may still use."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy bytes on the current stream, without waiting."""
    target.copy_(source, non_blocking=True)


def _no_room(error: RuntimeError, wanted: int, held: int) -> SpillError:
    return SpillError(
        report(
            "There is not enough pinned host memory for saved values.",
            facts=[
                ("wanted", in_words(wanted)),
                ("held already", in_words(held)),
                ("torch says", str(error).splitlines()[0]),
            ],
            todo='Give a larger budget on the device, or use ps.memory("recompute").',
        )
    )
