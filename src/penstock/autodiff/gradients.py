"""Gradients of arena values: one row per slot, present only where a cotangent has arrived.

Presence is kept on the host, apart from the values: a slot without a gradient is not a slot with a
zero gradient. The slots of a launch's results are cleared once its backward half has run, so that a
reused slot starts anew.
"""

from __future__ import annotations

import numpy as np
import torch

from penstock.plan.schedule import Integers, Kind, Picks, Span, consecutive


def slots_of(source: Span | Picks) -> Integers:
    """The slots of an operand or a target, one by one."""
    if isinstance(source, Span):
        return np.arange(source.start, source.start + source.count)
    return source.slots


def add_gradients(known: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    """The sum of gradients, in the memory of the first; torch adds sparse to dense, but not the
    other way.
    """
    if known is None:
        return more
    return more + known if known.is_sparse else known.add_(more)


class GradientArena:
    """The gradients of one arena."""

    def __init__(self, kind: Kind, capacity: int) -> None:
        self.kind = kind
        self.device = torch.device(kind.device)
        dtype = getattr(torch, kind.dtype)
        self.values = torch.empty((capacity, *kind.shape), dtype=dtype, device=self.device)
        self.present = np.zeros(capacity, np.bool_)

    def index(self, slots: Integers) -> torch.Tensor:
        """Slots as an index tensor."""
        return torch.from_numpy(slots).to(self.device, non_blocking=True)

    def gather(self, slots: Integers) -> torch.Tensor:
        """Gradients of slots; zeros where there is none."""
        missing = slots[~self.present[slots]]
        if len(missing):
            self.values.index_fill_(0, self.index(missing), 0)
        if consecutive(slots):
            start = int(slots[0])
            return self.values[start : start + len(slots)]
        return self.values.index_select(0, self.index(slots))

    def accumulate(self, slots: Integers, gradients: torch.Tensor) -> None:
        """Add gradients to slots, each as often as it occurs: a plain write where it is the first
        and only one.
        """
        if not len(slots):
            return
        if gradients.untyped_storage().data_ptr() == self.values.untyped_storage().data_ptr():
            gradients = gradients.clone()
        held = self.present[slots]
        if not held.any() and _is_unique(slots):
            self._write(slots, gradients)
            return
        missing = slots[~held]
        if len(missing):
            self.values.index_fill_(0, self.index(missing), 0)
            self.present[missing] = True
        self.values.index_add_(0, self.index(slots), gradients)

    def _write(self, slots: Integers, gradients: torch.Tensor) -> None:
        self.present[slots] = True
        if consecutive(slots):
            start = int(slots[0])
            self.values[start : start + len(slots)].copy_(gradients)
        else:
            self.values.index_copy_(0, self.index(slots), gradients)

    def clear(self, slots: Integers) -> None:
        """Forget the gradients of slots."""
        self.present[slots] = False


def _is_unique(slots: Integers) -> bool:
    return len(slots) == 1 or consecutive(slots) or len(np.unique(slots)) == len(slots)
