"""Bytes of CUDA tensors in pinned host memory, copied on streams of their own.

Copies out and in have a stream each; order is kept by events alone, so the host never waits:

* a copy out starts after the launch that made the bytes, and the stream of launches waits for it
  before the bytes' memory is used again;
* a copy in goes to memory that the stream of launches has let go by then, and launches that read
  it wait for the copy;
* pinned bytes are written again only after all copies in that were asked for before.

Device memory comes from torch's allocator on the stream of launches and is given back there. What
was sent together lies together in pinned memory, and comes back in one copy.
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
from penstock.run.memory.parcels import Arriving, Away, joint_size, split
from penstock.run.memory.policy import in_words
from penstock.run.recording import building

#: Pinned memory is asked for in pieces of this size, which stay for later calls.
PIECE = 1 << 30


class Region(NamedTuple):
    """Pinned bytes."""

    piece: int
    extent: Extent
    values: torch.Tensor


class Slab:
    """The pinned memory of a device; it grows and is never given back."""

    def __init__(self) -> None:
        self.pieces: list[torch.Tensor] = []
        self.extents: list[Extents] = []
        #: Runs of several threads share the slab.
        self.lock = Lock()

    def take(self, size: int) -> Region:
        """Room for so many bytes."""
        with self.lock:
            return self._find(size) or self._grow(size)

    def give_back(self, region: Region) -> None:
        """The bytes may be written again by copies that are asked for from now on."""
        with self.lock:
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
            with building():
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


@dataclass(slots=True, eq=False)
class CopyStreams:
    """The streams on which bytes leave a device and come back."""

    outward: torch.cuda.Stream
    inward: torch.cuda.Stream
    #: After the last copy in that may not be done yet.
    last: torch.cuda.Event | None = None

    def wait_inward(self) -> None:
        """Copies out that follow start after all copies in before them, which may still read what
        they write.
        """
        if self.last is not None:
            if self.last.query():  # type: ignore[no-untyped-call]
                self.last = None
            else:
                self.outward.wait_event(self.last)


@cache
def copy_streams(device: torch.device) -> CopyStreams:
    """The streams of a device."""
    return CopyStreams(torch.cuda.Stream(device), torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


@cache
def slab_of(device: torch.device) -> Slab:
    """The pinned memory of a device."""
    return Slab()


class PinnedMemory:
    """Where the bytes of one device go."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.slab = slab_of(device)
        self.streams = copy_streams(device)

    def send(self, parts: Sequence[torch.Tensor]) -> Away:
        """Start to copy bytes to the host."""
        launches = torch.cuda.current_stream(self.device)
        sizes = [len(part) for part in parts]
        region = self.slab.take(joint_size(sizes))
        outward = self.streams.outward
        outward.wait_event(launches.record_event())
        self.streams.wait_inward()
        with torch.cuda.stream(outward):
            for part, room in zip(parts, split(region.values, sizes), strict=True):
                _copy(part, room)
        return _Out(self, region, sizes, outward.record_event(), list(parts))


@dataclass(slots=True, eq=False)
class _Out:
    """Bytes in pinned memory, or on their way there."""

    memory: PinnedMemory
    #: None once it is given back.
    region: Region | None
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
        assert self.region is not None
        device, streams = self.memory.device, self.memory.streams
        inward = streams.inward
        values = _new(joint_size(self.sizes), device)
        inward.wait_event(torch.cuda.current_stream(device).record_event())
        inward.wait_event(self.last)
        with torch.cuda.stream(inward):
            _copy(self.region.values[: len(values)], values)
        self.last = streams.last = inward.record_event()
        return _In(device, split(values, self.sizes), self.last)

    def free(self) -> None:
        """The pinned bytes may be written again, once they are copied."""
        self.settle()
        region, self.region = self.region, None
        if region is not None:
            self.memory.slab.give_back(region)

    def __del__(self) -> None:
        if self.parts:
            self.last.synchronize()
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


@dataclass(slots=True, eq=False)
class Incoming:
    """Bytes of the host on their way to a device, or there."""

    device: torch.device
    values: torch.Tensor
    done: torch.cuda.Event
    #: Whether launches wait for the copy.
    is_settled: bool = False

    def settle(self) -> torch.Tensor:
        """The bytes, for launches that are asked for from now on."""
        if not self.is_settled:
            torch.cuda.current_stream(self.device).wait_event(self.done)
            self.is_settled = True
        return self.values

    def wait(self) -> None:
        """Wait until the bytes are copied."""
        self.done.synchronize()

    def __del__(self) -> None:
        if not self.is_settled:  # the memory must not be used again before
            self.done.synchronize()


def upload(source: torch.Tensor, device: torch.device, stream: torch.cuda.Stream) -> Incoming:
    """Start to copy bytes of the host to a device, on a stream."""
    values = _new(len(source), device)
    stream.wait_event(torch.cuda.current_stream(device).record_event())
    with torch.cuda.stream(stream):
        _copy(source, values)
    return Incoming(device, values, stream.record_event())


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
            todo="Free memory of the host, or let more of it be pinned (ulimit -l).",
        )
    )
