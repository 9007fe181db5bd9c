"""Large tensors of the host in memory that is used again.

The system clears memory that it gives to a process, and a step that gives back what it has taken
waits for that in every round: up to a sixth of its time. Here memory comes back when no tensor
reads it any more, whoever held the last one. What users get is in memory of torch's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from penstock.run.memory.lasting import note_lasting

#: Less is left to torch, whose allocator keeps it.
LEAST_BYTES = 1 << 20

#: What is kept of pieces that nobody uses, at most.
MOST_BYTES = 256 << 20

#: Sizes are rounded up by an eighth at most, so that pieces of like sizes serve each other.
STEPS = 8

#: As torch aligns its own.
ALIGNMENT = 64

HOST = torch.device("cpu")

Piece = npt.NDArray[np.uint8]


class HostMemory:
    """Pieces of memory that were used before."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        #: By size. Pieces may come back at any moment, even in the middle of a method, so there is
        #: no lock: lists are changed by operations that are done at once.
        self._free: dict[int, list[Piece]] = {}

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor, whatever it holds."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return torch.empty(shape, dtype=dtype, device=HOST)
        return self._take(size).view(dtype).view(shape)

    def _take(self, size: int) -> torch.Tensor:
        rounded = _rounded(size)
        try:
            piece = self._free[rounded].pop()
        except LookupError:
            piece = self._new_piece(rounded)
        lent = piece[:size]
        weakref.finalize(lent, self._keep, piece).atexit = False
        return torch.from_numpy(lent)

    def _new_piece(self, size: int) -> Piece:
        try:
            return _aligned(size)
        except MemoryError:
            if not self.give_back():
                raise
            return _aligned(size)

    def _keep(self, piece: Piece) -> None:
        if self.kept_bytes() + piece.nbytes > self.most:
            self._free = {}
        if piece.nbytes <= self.most:
            self._free.setdefault(piece.nbytes, []).append(piece)

    def give_back(self) -> bool:
        """Let go of what waits; whether there was something."""
        had, self._free = self.kept_bytes() > 0, {}
        return had

    def kept_bytes(self) -> int:
        """What waits to be used again."""
        return sum(size * len(free) for size, free in list(self._free.items()))


def _rounded(size: int) -> int:
    step = (1 << size.bit_length()) // (2 * STEPS)
    return -(-size // step) * step


def _aligned(size: int) -> Piece:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


_memory = HostMemory()
note_lasting(_memory)

#: A tensor of the host for what a run needs for itself.
empty_on_host = _memory.empty


def empty_on(device: torch.device, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The same on any device."""
    if device.type == "cpu":
        return empty_on_host(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)
