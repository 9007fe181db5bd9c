"""Memory that outlives calls: CUDA graphs keep what they work in, and the host keeps large pieces.

All of it can be made again, so it is given back when an allocation fails.
"""

from __future__ import annotations

import gc
from typing import Protocol
from weakref import WeakSet

import torch


class Lasting(Protocol):
    """Somebody who keeps memory for later calls."""

    def give_back(self) -> bool:
        """Let go of what nobody works with now; whether there was something."""

    def __hash__(self) -> int:
        """Each counts for itself."""


_known: WeakSet[Lasting] = WeakSet()


def note_lasting(holder: Lasting) -> None:
    """Somebody may have memory to give back, for as long as he lives."""
    _known.add(holder)


def give_back_lasting() -> bool:
    """Let all give back what they can; whether there was something."""
    given = [holder.give_back() for holder in list(_known)]
    if any(given):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return any(given)
