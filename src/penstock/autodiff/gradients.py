"""Gradients of arena values: one row per slot, present only where a cotangent has arrived.

Presence is kept on the host, apart from the values: a slot without a gradient is not a slot with a
zero gradient. The slots of a launch's results are cleared once its backward half has run, so that a
reused slot starts anew. What is to be done with values follows from presence alone, so it can be
prepared once and done in every backward pass of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
import torch

from penstock.plan.schedule import Integers, Kind, consecutive
from penstock.run.fused.indices import FindIndex


def add_gradients(known: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    """The sum of gradients, in the memory of the first; torch adds sparse to dense, but not the
    other way.
    """
    if known is None:
        return more
    return more + known if known.is_sparse else known.add_(more)


#: Gathers gradients of some slots, or adds gradients to them, in any arena like the one for which
#: it was prepared.
Gather: TypeAlias = "Callable[[GradientArena], torch.Tensor]"
Accumulate: TypeAlias = "Callable[[GradientArena, torch.Tensor], None]"


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
        return self.prepare_gather(slots)(self)

    def prepare_gather(self, slots: Integers, index: FindIndex | None = None) -> Gather:
        """How to gather the gradients of slots while those are present that now are; `index` finds
        the slots on the device, if they are wanted.
        """
        missing = slots[~self.present[slots]]
        take = self._prepare_take(slots, index or self._finding(slots))
        if not len(missing):
            return take
        fill = self.index(missing)

        def gather(arena: GradientArena) -> torch.Tensor:
            arena.values.index_fill_(0, fill, 0)
            return take(arena)

        return gather

    def _prepare_take(self, slots: Integers, index: FindIndex) -> Gather:
        if consecutive(slots):
            start, end = int(slots[0]), int(slots[0]) + len(slots)
            return lambda arena: arena.values[start:end]
        return lambda arena: arena.values.index_select(0, index())

    def _finding(self, slots: Integers) -> FindIndex:
        """Brings slots to the device when they are first wanted."""
        return cache(lambda: self.index(slots))

    def accumulate(self, slots: Integers, gradients: torch.Tensor) -> None:
        """Add gradients to slots, each as often as it occurs: a plain write where it is the first
        and only one.
        """
        self.prepare_accumulate(slots)(self, gradients)

    def prepare_accumulate(self, slots: Integers) -> Accumulate:
        """How to add gradients to slots while those are present that now are; they are, after
        it.
        """
        if not len(slots):
            return lambda arena, gradients: None
        if self.take_first(slots):
            return self.prepare_write(slots)
        return self.prepare_add(slots)

    def prepare_add(self, slots: Integers, index: FindIndex | None = None) -> Accumulate:
        """How to add gradients to slots, some of which have one already or occur twice."""
        find = index or self._finding(slots)
        held = self.present[slots]
        missing = slots[~held]
        self.present[missing] = True
        fill = self.index(missing) if len(missing) else None
        if fill is None and consecutive(slots):
            return _prepare_add(int(slots[0]), len(slots))

        def add(arena: GradientArena, gradients: torch.Tensor) -> None:
            gradients = arena.apart(gradients)
            if fill is not None:
                arena.values.index_fill_(0, fill, 0)
            arena.values.index_add_(0, find(), gradients)

        return add

    def take_first(self, slots: Integers) -> bool:
        """Whether gradients of these slots are the first and only ones to come, so that they can be
        written; if so, the slots have gradients from now on.
        """
        is_first = not self.present[slots].any() and _is_unique(slots)
        if is_first:
            self.present[slots] = True
        return is_first

    def prepare_write(self, slots: Integers, index: FindIndex | None = None) -> Accumulate:
        """How to write the first gradients of slots."""
        if not consecutive(slots):
            find = index or self._finding(slots)

            def scatter(arena: GradientArena, gradients: torch.Tensor) -> None:
                arena.values.index_copy_(0, find(), arena.apart(gradients))

            return scatter
        start, end = int(slots[0]), int(slots[0]) + len(slots)

        def write(arena: GradientArena, gradients: torch.Tensor) -> None:
            arena.values[start:end].copy_(arena.apart(gradients))

        return write

    def apart(self, gradients: torch.Tensor) -> torch.Tensor:
        """The gradients in other memory than the arena's."""
        is_own = gradients.untyped_storage().data_ptr() == self.values.untyped_storage().data_ptr()
        return gradients.clone() if is_own else gradients

    def clear(self, slots: Integers) -> None:
        """Forget the gradients of slots."""
        self.present[slots] = False


def _is_unique(slots: Integers) -> bool:
    """Whether no slot occurs twice: whoever comes last leaves a mark, so all find their own."""
    if len(slots) == 1 or consecutive(slots):
        return True
    marks = np.empty(int(slots.max()) + 1, np.int64)
    order = np.arange(len(slots))
    marks[slots] = order
    return bool((marks[slots] == order).all())


def _prepare_add(start: int, count: int) -> Accumulate:
    """Add to slots that follow each other and all have gradients."""

    def add(arena: GradientArena, gradients: torch.Tensor) -> None:
        arena.values[start : start + count].add_(arena.apart(gradients))

    return add
