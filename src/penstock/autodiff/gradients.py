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
import numpy.typing as npt
import torch

from penstock.plan.schedule import Integers, Kind, Picks, Span, consecutive
from penstock.run.arenas import likeness_of
from penstock.run.capturing import refuse_while_capturing
from penstock.run.fused.indices import FindIndex
from penstock.run.host_memory import empty_on

_NONE: Integers = np.empty(0, np.int64)


def add_gradients(known: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    """The sum of gradients, in the memory of the first; torch adds sparse to dense, but not the
    other way.
    """
    if known is None:
        return more
    return more + known if known.is_sparse else known.add_(more)


#: Slots that follow each other, or any.
Slots: TypeAlias = slice | Integers

#: Gathers gradients of some slots, or adds gradients to them, in any arena like the one for which
#: it was prepared.
Gather: TypeAlias = "Callable[[GradientArena], torch.Tensor]"
Accumulate: TypeAlias = "Callable[[GradientArena, torch.Tensor], None]"


def as_slots(source: Span | Picks) -> Slots:
    """The slots of an operand or a target."""
    if type(source) is Span:
        return slice(source.start, source.start + source.count)
    return source.slots  # type: ignore[union-attr]


def as_array(slots: Slots) -> Integers:
    """Slots one by one."""
    return np.arange(slots.start, slots.stop) if type(slots) is slice else slots


def count_of(slots: Slots) -> int:
    """How many slots there are."""
    return slots.stop - slots.start if isinstance(slots, slice) else len(slots)


def as_slice(slots: Slots) -> slice | None:
    """Slots that follow each other, if they do."""
    if isinstance(slots, slice):
        return slots
    return slice(int(slots[0]), int(slots[-1]) + 1) if consecutive(slots) else None


def finder(where: torch.Tensor | FindIndex) -> FindIndex:
    """What finds slots on their device, where they may be already."""
    return where if callable(where) else lambda _=None: where


def _counted(count: int) -> Integers:
    """The numbers from 0 on."""
    global _counts
    if len(_counts) < count:
        _counts = np.arange(2 * count)
    return _counts[:count]


_counts: Integers = np.arange(1024)


class GradientArena:
    """The gradients of one arena."""

    def __init__(self, kind: Kind, capacity: int, first: int = 0) -> None:
        self.kind = kind
        #: The slot of the first gradient: those before it never have one.
        self.first = first
        #: The same for all arenas of a kind.
        self.likeness = likeness_of(kind)
        self.device = torch.device(kind.device)
        dtype = getattr(torch, kind.dtype)
        shape = (capacity - first, *kind.shape)
        self.values = empty_on(self.device, shape, dtype)
        self.present = np.zeros(capacity, np.bool_)
        #: Slots of inputs whose gradients nobody asks for, if there are any: whatever is written
        #: there is not read, and they never have a gradient.
        self.unasked: npt.NDArray[np.bool_] | None = None
        #: For finding out whether slots occur twice.
        self._marks = np.empty(capacity, np.int64)

    def leave_out(self, span: Span) -> None:
        """Nobody asks for the gradients of these slots."""
        if self.unasked is None:
            self.unasked = np.zeros(len(self.present), np.bool_)
        self.unasked[span.start : span.start + span.count] = True

    def index(self, slots: Slots) -> torch.Tensor:
        """Where the gradients of slots are, as an index tensor."""
        refuse_while_capturing()
        where = as_array(slots) - self.first if self.first else as_array(slots)
        return torch.from_numpy(where).to(self.device, non_blocking=True)

    def piece(self, slots: Slots) -> slice | None:
        """Where the gradients of slots are, if they follow each other."""
        found = as_slice(slots)
        if found is None or not self.first:
            return found
        return slice(found.start - self.first, found.stop - self.first)

    def _finding(self, slots: Slots) -> FindIndex:
        """Brings slots to the device when they are first wanted."""
        return cache(lambda: self.index(slots))

    # ---- presence --------------------------------------------------------------------------------

    def missing(self, slots: Slots) -> Integers:
        """The slots that have no gradient."""
        held = self.present[slots]
        # Counting takes a tenth of the time of `all` and `any` where there are few.
        return _NONE if np.count_nonzero(held) == len(held) else as_array(slots)[~held]

    def take_first(self, slots: Slots, *, are_distinct: bool = False) -> bool:
        """Whether gradients of these slots are the first and only ones to come, so that they can be
        written; if so, the slots have gradients from now on.
        """
        if np.count_nonzero(self.present[slots]):
            return False
        if not are_distinct and not self.are_distinct(slots):
            return False
        self._mark(slots)
        return True

    def look(self, slots: Slots) -> tuple[bool, bool]:
        """Whether no slot occurs twice; and whether, besides, gradients of these slots are the
        first to come: the slots have gradients then from now on.
        """
        are_distinct = self.are_distinct(slots)
        return are_distinct, are_distinct and self.take_first(slots, are_distinct=True)

    def hold(self, slots: Slots) -> npt.NDArray[np.bool_] | None:
        """For slots of which none occurs twice whether each has a gradient, None if none has; all
        have one from now on.
        """
        held: npt.NDArray[np.bool_] = self.present[slots].copy()
        self._mark(slots)
        return held if np.count_nonzero(held) else None

    def take_more(self, slots: Slots) -> Integers:
        """The slots have gradients from now on; those that had none before."""
        without = self.missing(slots)
        self._mark(without)
        return without

    def _mark(self, slots: Slots) -> None:
        self.present[slots] = True if self.unasked is None else ~self.unasked[slots]

    def are_distinct(self, slots: Slots) -> bool:
        """Whether no slot that is asked for occurs twice: whoever comes last leaves a mark, so all
        find their own.
        """
        if isinstance(slots, slice) or len(slots) < 2:
            return True
        if self.unasked is not None:
            slots = slots[~self.unasked[slots]]
        if len(slots) > len(self._marks):
            return False
        order = _counted(len(slots))
        self._marks[slots] = order
        return not np.count_nonzero(self._marks[slots] != order)

    def clear(self, slots: Slots) -> None:
        """Forget the gradients of slots."""
        self.present[slots] = False

    # ---- values ----------------------------------------------------------------------------------

    def gather(self, slots: Slots) -> torch.Tensor:
        """Gradients of slots; zeros where there is none."""
        return self.prepare_gather(slots)(self)

    def prepare_gather(self, slots: Slots) -> Gather:
        """How to gather the gradients of slots while those are present that now are."""
        missing = self.missing(slots)
        take = self.prepare_take(slots, self._finding(slots))
        if not len(missing):
            return take
        fill = self.index(missing)

        def gather(arena: GradientArena) -> torch.Tensor:
            arena.values.index_fill_(0, fill, 0)
            return take(arena)

        return gather

    def prepare_take(self, slots: Slots, index: FindIndex) -> Gather:
        """How to gather gradients of slots that all have one."""
        piece = self.piece(slots)
        if piece is not None:
            return lambda arena: arena.values[piece]
        return lambda arena: arena.values.index_select(0, index())

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
            return self.prepare_write(slots, self._finding(slots))
        missing = self.take_more(slots)
        fill = self._finding(missing) if len(missing) else None
        return self.prepare_add(slots, self._finding(slots), fill)

    def prepare_add(self, slots: Slots, find: FindIndex, missing: FindIndex | None) -> Accumulate:
        """How to add gradients to slots, some of which (but not those that are missing) have one
        already or occur twice.
        """
        piece = self.piece(slots)
        if missing is None and piece is not None:

            def add_to_piece(arena: GradientArena, gradients: torch.Tensor) -> None:
                arena.values[piece].add_(arena.apart(gradients))

            return add_to_piece

        def add(arena: GradientArena, gradients: torch.Tensor) -> None:
            gradients = arena.apart(gradients)
            if missing is not None:
                arena.values.index_fill_(0, missing(), 0)
            arena.values.index_add_(0, find(), gradients)

        return add

    def prepare_write(self, slots: Slots, find: FindIndex) -> Accumulate:
        """How to write the first gradients of slots."""
        piece = self.piece(slots)
        if piece is None:

            def scatter(arena: GradientArena, gradients: torch.Tensor) -> None:
                arena.values.index_copy_(0, find(), arena.apart(gradients))

            return scatter

        def write(arena: GradientArena, gradients: torch.Tensor) -> None:
            arena.values[piece].copy_(arena.apart(gradients))

        return write

    def add(self, index: torch.Tensor, gradients: torch.Tensor) -> None:
        """Add gradients to slots that all have one."""
        rows = gradients.reshape(index.shape[0], *self.kind.shape)
        self.values.index_add_(0, index, rows)

    def apart(self, gradients: torch.Tensor) -> torch.Tensor:
        """The gradients in other memory than the arena's."""
        is_own = gradients.untyped_storage().data_ptr() == self.values.untyped_storage().data_ptr()
        return gradients.clone() if is_own else gradients
