"""Parcels: tensors that leave memory together and come back as they were.

What travels are whole storages, so that views of one storage stay views of one, with the strides
that they had: kernels that read them give the same bits. How tensors lie in their storages is
looked at when they are sent: one that never leaves costs next to nothing. A parcel is here, away (a
copy of its bytes is elsewhere), or on its way back.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch

from penstock.errors import InternalError, report
from penstock.run.memory.extents import rounded

#: A storage travels whole, unless it is more than so many times what is wanted of it.
SPARSE = 2


#: Says whose values something holds.
Owner: TypeAlias = Callable[[], str]


def nobody() -> str:
    """Nothing is said."""
    return ""


class Arriving(Protocol):
    """Bytes on their way back; may be dropped before they have come."""

    def settle(self) -> list[torch.Tensor]:
        """The bytes, for whoever reads them from now on."""


class Away(Protocol):
    """A copy of some bytes that is elsewhere, or on its way there."""

    def settle(self) -> None:
        """Make sure that the originals may be written over."""

    def bring(self) -> Arriving:
        """Start to copy the bytes back, into new memory."""

    def free(self) -> None:
        """The copy is not needed any more, and need not even have been made; what was to come back
        and has not been waited for may not come.
        """


class Backing(Protocol):
    """Where bytes of one device go."""

    def send(self, parts: Sequence[torch.Tensor]) -> Away:
        """Start to copy bytes away; they must not change before that is settled."""


@dataclass(slots=True, eq=False)
class Parcel:
    """Tensors of one device, and the bytes of the storages that they lie in."""

    size: int
    device: torch.device
    #: The tensors, while they are here.
    tensors: list[torch.Tensor]
    #: How they lie in their storages, once these were sent.
    views: tuple[View, ...] = ()
    away: Away | None = None
    arriving: Arriving | None = None
    #: Of the bytes that were sent, where somebody asked for it.
    checksum: int | None = None
    #: Whose values they are, for errors.
    owner: Owner = nobody

    @property
    def is_here(self) -> bool:
        """Whether it is in memory."""
        return bool(self.tensors)

    def send(self, backing: Backing, checks: bool) -> None:
        """Start to copy its bytes away."""
        parts, self.views = pack(self.tensors)
        if checks:
            self.checksum = checksum_of(parts)
        self.away = backing.send(parts)

    def arrive(self) -> None:
        """Be here again, with the bytes that have come."""
        assert self.arriving is not None
        parts, self.arriving = self.arriving.settle(), None
        self._check(parts)
        self.tensors = [view.of(parts) for view in self.views]

    def _check(self, parts: Sequence[torch.Tensor]) -> None:
        """Make sure that the bytes that came back are those that were sent."""
        if self.checksum is not None and checksum_of(parts) != self.checksum:
            raise InternalError(
                report(
                    "Bytes that were swapped out came back changed.",
                    facts=[
                        ("sent", f"{self.size:,} bytes, checksum {self.checksum:08x}"),
                        ("came back", f"checksum {checksum_of(parts):08x}"),
                    ],
                    todo="Please report it, with the program that shows it.",
                )
            )


class View(NamedTuple):
    """How a tensor lies in one of some storages."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor, in these storages."""
        part = parts[self.storage]
        count = len(part) // self.dtype.itemsize
        values = part[: count * self.dtype.itemsize].view(self.dtype)
        offset = self.offset + int(values.storage_offset())
        return values.as_strided(self.shape, self.stride, offset)


def storage_sizes(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """The bytes that tensors need of each storage, by where it begins: all of it, or as much as
    copies of them, if they are a small part.
    """
    return Extensions(tensors).sizes


class Extensions:
    """What tensors need of the storages that they lie in."""

    __slots__ = ("places", "sizes", "sparse")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        #: For each tensor where its storage begins.
        self.places: list[int] = []
        self.sizes: dict[int, int] = {}
        needed: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            self.places.append(place)
            self.sizes[place] = storage.nbytes()
            needed[place] = needed.get(place, 0) + tensor.nbytes
        #: Storages of which they are a small part: copies of them take less.
        self.sparse = [k for k, size in self.sizes.items() if size > SPARSE * needed[k]]
        for place in self.sparse:
            self.sizes[place] = needed[place]

    def compact(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors; those that are a small part of their storages in memory of their own."""
        if not self.sparse:
            return tensors
        return [
            tensor.clone() if place in self.sparse else tensor
            for tensor, place in zip(tensors, self.places, strict=True)
        ]


def pack(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[View, ...]]:
    """All bytes of the storages that tensors lie in, and how they lie there."""
    places: dict[int, int] = {}
    parts: list[torch.Tensor] = []
    views: list[View] = []
    for tensor in tensors:
        place = places.setdefault(tensor.untyped_storage().data_ptr(), len(parts))
        if place == len(parts):
            parts.append(_all_bytes(tensor))
        shape, stride = tuple(tensor.shape), tensor.stride()
        views.append(View(place, tensor.dtype, shape, stride, int(tensor.storage_offset())))
    return parts, tuple(views)


def _all_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor as bytes."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def split(values: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The parts of bytes that lie together, each where it may begin."""
    parts, start = [], 0
    for size in sizes:
        parts.append(values[start : start + size])
        start += rounded(size)
    return parts


def joint_size(sizes: Sequence[int]) -> int:
    """Bytes of parts that lie together."""
    return sum(map(rounded, sizes[:-1])) + sizes[-1]


def checksum_of(parts: Sequence[torch.Tensor]) -> int:
    """A checksum of bytes; waits for a device."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.cpu().numpy().data, found)
    return found
