"""Parcels: bytes that leave memory together and come back as they were.

What travels are whole storages, so that views of one storage stay views of one, with the strides
that they had: kernels that read them give the same bits. A parcel is here, away (a copy of its
bytes is elsewhere), or on its way back.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from penstock.errors import InternalError, report

#: A storage travels whole, unless it is more than so many times what is wanted of it.
SPARSE = 2


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
        """The copy is not needed any more, and need not even have been made."""


class Backing(Protocol):
    """Where bytes of one device go."""

    def send(self, parts: Sequence[torch.Tensor]) -> Away:
        """Start to copy bytes away; they must not change before that is settled."""


@dataclass(slots=True, eq=False)
class Parcel:
    """The bytes of some storages of one device."""

    size: int
    device: torch.device
    #: All bytes of each storage, while the parcel is here.
    parts: list[torch.Tensor]
    away: Away | None = None
    arriving: Arriving | None = None
    #: Of the bytes that were sent, where somebody asked for it.
    checksum: int | None = None

    @property
    def is_here(self) -> bool:
        """Whether its bytes are in memory."""
        return bool(self.parts)

    def check(self) -> None:
        """Make sure that the bytes that came back are those that were sent."""
        if self.checksum is not None and checksum_of(self.parts) != self.checksum:
            raise InternalError(
                report(
                    "Bytes that were swapped out came back changed.",
                    facts=[
                        ("sent", f"{self.size:,} bytes, checksum {self.checksum:08x}"),
                        ("came back", f"checksum {checksum_of(self.parts):08x}"),
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
        storage = parts[self.storage].untyped_storage()
        tensor = torch.empty(0, dtype=self.dtype, device=parts[self.storage].device)
        return tensor.set_(storage, self.offset, self.shape, self.stride)


def storage_sizes(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """The bytes that tensors need of each storage, by where it begins: all of it, or as much as
    copies of them, if they are a small part.
    """
    sizes: dict[int, int] = {}
    needed: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        sizes[place] = storage.nbytes()
        needed[place] = needed.get(place, 0) + tensor.nbytes
    return {
        place: size if size <= SPARSE * needed[place] else needed[place]
        for place, size in sizes.items()
    }


def compact(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors; those that are a small part of their storages in memory of their own."""
    sizes = storage_sizes(tensors)
    return [
        tensor.clone() if sizes[storage.data_ptr()] < storage.nbytes() else tensor
        for tensor, storage in ((each, each.untyped_storage()) for each in tensors)
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


def checksum_of(parts: Sequence[torch.Tensor]) -> int:
    """A checksum of bytes; waits for a device."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.cpu().numpy().data, found)
    return found
