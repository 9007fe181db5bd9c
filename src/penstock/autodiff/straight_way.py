"""A way back whose compiled halves are called in a row, for tapes of one kept plan.

What the halves take is picked out of one pool of tensors, in which a pass puts the gradients of
arenas and uniform values; saved values come from pages as they are reached, so that their memory is
free as soon as before. Halves that do more than to write gradients and to collect factors of weight
gradients, and all that moves gradients elsewhere, go the usual way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from penstock.autodiff.additions import Collection
from penstock.autodiff.page import Page
from penstock.run.fused.inductor import Compiled
from penstock.run.fused.launch_code import contiguous
from penstock.run.straight import Pool

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.tape import Entry
    from penstock.autodiff.way_back import Half, Move

log = logging.getLogger("penstock")


class CallBack(NamedTuple):
    """One compiled half."""

    half: Half
    code: Compiled
    take: Callable[[list[Any]], tuple[torch.Tensor, ...]]
    #: At which place which saved value is taken, and in which shape.
    saved: Sequence[tuple[int, int, tuple[int, ...] | None]]
    #: What is collected, and which of the results.
    collected: Sequence[tuple[Collection, Sequence[int]]]
    is_own: bool
    #: Whether it reads what can be used up.
    needs_saved: bool
    #: Whether it may be done again where the code has failed.
    is_repeatable: bool


class StraightWay:
    """The steps of a way, each with its compiled halves where all of them are."""

    def __init__(self, entries: Sequence[Entry], steps: Sequence[tuple[Half, ...] | Move]) -> None:
        self._pool = Pool()
        self.arenas: dict[int, int] = {}
        self.wires: dict[int, int] = {}
        pairs = zip(reversed(entries), steps, strict=True)
        self.steps = [(step, self._calls(entry, step)) for entry, step in pairs]
        self.tensors = self._pool.tensors

    @property
    def is_worth_it(self) -> bool:
        """Whether there are compiled halves in it."""
        return any(calls for _, calls in self.steps)

    def _calls(self, entry: Entry, step: tuple[Half, ...] | Move) -> tuple[CallBack, ...]:
        if not isinstance(step, tuple) or not isinstance(entry, Page):
            return ()
        calls = [self._call(entry, half) for half in step]
        ready = tuple(call for call in calls if call is not None)
        return ready if len(ready) == len(calls) else ()

    def _call(self, page: Page, half: Half) -> CallBack | None:
        fused = half.fused
        if fused is None or not fused.is_found or half.zeros or len(fused.tensors) < 2:
            return None
        layout, form = fused.layout, fused.layout.form.form
        if form.compiled is None or form.code.device.type != "cpu" or fused.additions:
            return None
        empty = self._pool.place("empty")
        constant = self._pool.constant
        places = [empty if tensor is None else constant(tensor) for tensor in fused.tensors]
        for place, wire in layout.wires:
            places[place] = self._pool.place(("wire", wire))
            self.wires[places[place]] = wire
        for place, number in layout.arenas:
            places[place] = self._pool.place(("arena", number))
            self.arenas[places[place]] = number
        saved = [
            (place, position, (page.rows, entries) if entries > 1 else None)
            for place, position, entries in layout.saved
        ]
        return CallBack(
            half,
            form.compiled,
            itemgetter(*places),
            saved,
            layout.collected,
            form.gives_own,
            half.needs_saved,
            form.code.is_repeatable,
        )

    def go(self, reversal: Reversal, entries: Sequence[Entry]) -> bool:
        """Take all steps; False where the usual way must be taken, before anything was done."""
        pool = self.tensors.copy()
        for place, wire in self.wires.items():
            pool[place] = reversal.read_uniform(wire)
        for place, number in self.arenas.items():
            pool[place] = reversal.arena(number).values
        if not contiguous([pool[place] for place in (*self.wires, *self.arenas)]):
            return False
        for entry, (step, calls) in zip(reversed(entries), self.steps, strict=True):
            if not calls or not isinstance(entry, Page) or entry.distinct is not None:
                reversal.run_step(entry, step)
                continue
            for call in calls:
                self._run(reversal, entry, call, pool)
            entry.release()
        return True

    def _run(self, reversal: Reversal, page: Page, call: CallBack, pool: list[Any]) -> None:
        half, code, take, saved, collected, is_own, needs_saved, is_repeatable = call
        tensors = list(take(pool))
        if needs_saved:
            page.use(half.index, is_last=True)
        for place, position, shape in saved:
            values = page.read_saved(position)
            tensors[place] = values if shape is None else values.view(*shape, *values.shape[1:])
        if not contiguous(tensors):  # saved values were made the plain way
            reversal.run_backward(page, half)
            return
        try:
            given = code(tensors)
        except Exception as error:
            if not is_repeatable:  # gradients may have been added already
                reversal.note(page, error)
                raise
            log.debug("compiled code failed: %s", error)
            reversal.run_backward(page, half)  # the usual way tells whose fault it is
            return
        for item, places in collected:
            factors = [given[place] for place in places]
            reversal.collect(item.key, item.wire, item.how, factors, is_own=is_own)


@dataclass(slots=True, eq=False)
class StraightenedWay:
    """The straight form of a way, as far as it was made."""

    passes: int = 0
    way: StraightWay | None = None

    def find(
        self, entries: Sequence[Entry], steps: Sequence[tuple[Half, ...] | Move]
    ) -> StraightWay | None:
        """Made when the way is gone for the third time, and anew when the passes have doubled."""
        self.passes += 1
        if self.passes > 1 and not self.passes & (self.passes - 1):
            made = StraightWay(entries, steps)
            self.way = made if made.is_worth_it else None
        return self.way
