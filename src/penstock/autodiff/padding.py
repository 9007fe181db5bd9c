"""Gradients of padded copies: they go to the elements that were copied, and padding has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.autodiff.gradients import Accumulate, Gather
from penstock.plan.schedule import (
    Integers,
    Pad,
    Picks,
    Span,
    Unpad,
    slots_of,
)
from penstock.plan.slots import ranges
from penstock.run.padder import Padder

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal


@dataclass(frozen=True, slots=True, eq=False)
class PaddingBack:
    """Gradients of padded sequences go to their elements, or the other way round."""

    above: int
    gather: Gather
    below: int
    add: Accumulate
    padder: Padder
    #: Whether gradients of elements go to padded sequences.
    pads: bool

    def run(self, reversal: Reversal) -> None:
        """Move them."""
        gradients = self.gather(reversal.arena(self.above))
        moved = self.padder.pad(gradients) if self.pads else self.padder.unpad(gradients)
        self.add(reversal.arena(self.below), moved)


def element_slots(source: Span | Picks, lengths: Integers, rows: Integers) -> Integers:
    """The slots of the elements of some sequences."""
    starts = np.cumsum(lengths) - lengths
    return slots_of(source)[ranges(starts[rows], lengths[rows])]


def rows_with_any(present: npt.NDArray[np.bool_], lengths: Integers) -> Integers:
    """The sequences of which some element is marked."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return np.unique(owners[present])


def mark_sources(entry: Pad | Unpad, present: Sequence[npt.NDArray[np.bool_]]) -> None:
    """From marked slots of a copy to what they were copied from."""
    targets, marks = slots_of(entry.target), present[entry.target.arena]
    held = marks[targets]
    marks[targets] = False
    if isinstance(entry, Pad):
        chosen = element_slots(entry.source, entry.lengths, np.flatnonzero(held))
    else:
        chosen = slots_of(entry.source)[rows_with_any(held, entry.lengths)]
    present[entry.source.arena][chosen] = True


def reverse_padding(reversal: Reversal, entry: Pad | Unpad) -> PaddingBack | None:
    """Turn a copy around; None where nothing has a gradient."""
    arena = reversal.arenas.get(entry.target.arena)
    if arena is None:
        return None
    targets, pads = slots_of(entry.target), isinstance(entry, Unpad)
    held = arena.present[targets]
    rows = rows_with_any(held, entry.lengths) if pads else np.flatnonzero(held)
    if not len(rows):
        return None
    if pads:
        above = element_slots(entry.target, entry.lengths, rows)
        chosen = slots_of(entry.source)[rows]
    else:
        above, chosen = targets[rows], element_slots(entry.source, entry.lengths, rows)
    gather = arena.prepare_gather(above)
    arena.clear(targets)
    below = reversal.arena(entry.source.arena)
    padder = Padder(entry.lengths[rows], entry.length, arena.device)
    add = below.prepare_accumulate(chosen)
    return PaddingBack(entry.target.arena, gather, entry.source.arena, add, padder, pads)
