"""Messages between ranks: rows behind a header that says which schedule they belong to.

The header is 16 bytes: the rolling digest of the sender's schedule, and the number of the operation
in the total order of all exchanges. The receiver knows both; rows of another schedule are refused.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from penstock.plan.schedule import Array, Instruction, pieces_of

#: Bytes in front of the rows; a multiple of every item size, so that rows are aligned.
HEADER = 16

#: Bytes up to which a message is made in memory of Python, in fewer steps.
_FEW = 1 << 14

_LAYOUT = struct.Struct("<8sq")


class RollingDigest:
    """A digest of all instructions planned so far, the same on all ranks that plan alike."""

    def __init__(self, start: bytes = b"") -> None:
        self.value = blake2b(start, digest_size=8).digest()

    def add(self, item: list[Instruction] | bytes) -> None:
        """Go on with more."""
        hasher = blake2b(self.value, digest_size=8)
        for piece in (item,) if isinstance(item, bytes) else pieces_of(item):
            hasher.update(piece)
        self.value = hasher.digest()


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the rows."""

    digest: bytes
    number: int

    def pack(self) -> bytes:
        """The header as bytes."""
        return _LAYOUT.pack(self.digest, self.number)

    def is_on(self, message: torch.Tensor) -> bool:
        """Whether a message has this header."""
        return _head(message) == self.pack()

    @staticmethod
    def unpack(message: torch.Tensor) -> Header:
        """The header of a message."""
        return Header(*_LAYOUT.unpack(_head(message)))


def _head(message: torch.Tensor) -> bytes:
    host = message if message.is_cpu else message[:HEADER].cpu()
    head: bytes = host.numpy()[:HEADER].tobytes()
    return head


def new_message(header: Header, rows: torch.Tensor) -> torch.Tensor:
    """Rows with their header, as bytes."""
    if rows.is_cpu and 0 < rows.nbytes <= _FEW:
        memory = bytearray(header.pack() + bytes(rows.nbytes))
        torch.frombuffer(memory, dtype=rows.dtype, offset=HEADER).view(rows.shape).copy_(rows)
        return torch.frombuffer(memory, dtype=torch.uint8)
    message = torch.empty(HEADER + rows.nbytes, dtype=torch.uint8, device=rows.device)
    packed = torch.frombuffer(bytearray(header.pack()), dtype=torch.uint8)
    message[:HEADER].copy_(packed)
    rows_in(message, rows.shape, rows.dtype).copy_(rows)
    return message


def message_of(header: Header, values: Array) -> torch.Tensor:
    """The same for few values of the host, in fewer steps."""
    return torch.frombuffer(bytearray(header.pack() + values.tobytes()), dtype=torch.uint8)


def room_for(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Memory for a message with such rows."""
    return torch.empty(size_with_header(shape, dtype), dtype=torch.uint8, device=device)


def size_with_header(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many bytes a message with such rows has."""
    return HEADER + math.prod(shape) * dtype.itemsize


def aligned(size: int) -> int:
    """The size, rounded up so that values of any type may lie behind."""
    return -(-size // HEADER) * HEADER


def rows_in(message: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The rows of a message, as a view."""
    return message[HEADER:].view(dtype).view(shape)


def values_in(memory: bytearray, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """The values of a message in memory of the host, as a view."""
    values: Array = np.frombuffer(memory, _host_dtype(dtype), offset=HEADER).reshape(shape)
    return values


@cache
def _host_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found
