"""Takes strips back by native code, together with all else that is on a tape.

Native code goes from launch to launch as long as it knows how: it looks which rows have cotangents,
runs the half for them, and adds gradients to slots. Where it stops, it says why; what it has no
code for goes back as pages, one by one.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.autodiff.page import second_backward
from penstock.autodiff.strip_halves import FACTORS, KnownHalves, NativeHalf, StripHalves
from penstock.autodiff.strips import Strip
from penstock.run.strips.batch import lies_plainly, scratch
from penstock.run.strips.library import library
from penstock.run.strips.words import (
    BLOCK,
    GRADIENT_WORDS,
    ROWS,
    Given,
    Set,
    Why,
    Words,
    address_of,
)

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.tape import Tape
    from penstock.autodiff.taped_run import TapedRun


def go_through(reversal: Reversal, tape: Tape) -> None:
    """Take all steps of a tape back."""
    for part in reversed(tape.parts):
        if isinstance(part, Strip):
            _StripPass(reversal, part).go()
        else:
            reversal.reverse_one(part)
    reversal.flush()


def _halves_of(run: TapedRun) -> StripHalves:
    """What is known of the backward halves of such runs."""
    known = run.executable.strips.halves
    halves: StripHalves | None = known.get(run.purpose)
    return known.setdefault(run.purpose, StripHalves.of(run)) if halves is None else halves


class _StripPass:
    """One strip in one backward pass."""

    def __init__(self, reversal: Reversal, strip: Strip) -> None:
        found = library()
        assert found is not None
        self.reversal, self.strip, self.library = reversal, strip, found
        self.halves = _halves_of(strip.run)
        self.rows = strip.rows_of_blocks()
        #: For each arena where its gradients are, as far as native code knows them.
        self.gradients = np.zeros((len(reversal.extents), GRADIENT_WORDS), np.int64)
        self.taken: set[int] = set()
        self.words = Words(sgemm=found.sgemm, dgemm=found.dgemm, keeps=int(reversal.keep))
        #: What a pass has for each half: rows of factors, and where each value given is.
        self.factors = np.empty(0, np.int64)
        self.back_wires = np.empty(0, np.int64)
        #: The memory of factors, by half and pointer.
        self.given: dict[int, dict[int, torch.Tensor]] = {}
        #: Values that must live as long as the pass.
        self.held: list[torch.Tensor] = []

    def go(self) -> None:
        """Take all its launches back."""
        self._begin()
        at = self.strip.end
        while at > self.strip.begin:
            stopped = self.library.backward(ctypes.byref(self.words), at, self.strip.begin)
            at = stopped + 1
            if stopped < 0:
                break
            if not self._help(stopped):
                self.reversal.reverse_one(self.strip.page(stopped))
                at = stopped
        self._collect()
        self.strip.release()

    def _begin(self) -> None:
        words, strip = self.words, self.strip
        strip.batch.tell(words)
        most = max(strip.batch.launches[strip.begin : strip.end, ROWS].max(), 0)
        self.counts = scratch.count_to(max(int(most), strip.batch.highest))
        words.counts, words.gone = address_of(self.counts), address_of(strip.gone)
        words.zeros, words.gradients = address_of(self.halves.zeros), address_of(self.gradients)
        self._take_room(1)
        for block in self.rows:
            flowing = int(self.halves.known.half_of[block, 0])
            form = strip.batch.decoder.forms[block]
            for result, arena in enumerate(form.targets):
                if flowing > 0 and flowing >> result & 1:
                    self._take_arena(arena)
        self._take_known(self.halves.known)

    def _take_room(self, size: int) -> None:
        self.memory = scratch.room(size)
        self.words.scratch, self.words.scratch_end = self.memory.data_ptr(), len(self.memory)

    def _take_known(self, known: KnownHalves) -> None:
        """Go on with these halves."""
        self.known, words = known, self.words
        more = known.pass_words - len(self.factors)
        self.factors = np.concatenate([self.factors, np.full(more, Set.UNKNOWN, np.int64)])
        wires = len(known.wires) - len(self.back_wires)
        self.back_wires = np.concatenate([self.back_wires, np.zeros(wires, np.int64)])
        words.half_of, words.halves = known.addresses
        words.factors, words.back_wires = address_of(self.factors), address_of(self.back_wires)

    def _take_arena(self, number: int) -> None:
        """Have native code know the gradients of an arena."""
        if number in self.taken:
            return
        self.taken.add(number)
        arena = self.reversal.arena(number)
        item = arena.values.element_size()
        size = prod(arena.kind.shape) * item
        self.gradients[number] = (
            arena.values.data_ptr() - arena.first * size,
            address_of(arena.present),
            0 if arena.unasked is None else address_of(arena.unasked),
            size,
            item,
            len(arena.present),
        )

    # ---- what native code asks for ---------------------------------------------------------------

    def _help(self, number: int) -> bool:
        """Do what native code has stopped for; False where the launch goes back plainly."""
        why, words = self.words.why, self.words
        if why == Why.USED:
            raise second_backward()
        if why == Why.BROKEN:
            name = self.reversal.taped.blocks[self._block(number)].name
            raise RuntimeError(f"compiled code of {name}.backward failed half-way")
        if why == Why.ROOM:
            self._take_room(words.scratch_most)
            return True
        if why == Why.READY:
            self._make_ready(int(words.set))
            return True
        if why == Why.ZEROS:
            page = self.strip.new_page(number)
            self.halves.may_be_zero(page, int(words.set), int(words.other_set))
            return True
        return why == Why.WANTED and self._find(number, int(words.set))

    def _find(self, number: int, chosen: int) -> bool:
        page, block = self.strip.new_page(number), self._block(number)
        if page.is_used_up:
            return False
        forward = self.strip.batch.forms.codes[block]
        if not self.halves.add(self.reversal, page, forward, chosen):
            return False
        self._take_known(self.halves.known)
        return True

    def _make_ready(self, start: int) -> None:
        """Find what a half needs in this pass; it goes back plainly where that cannot be."""
        half = self.known.halves[start]
        place = int(self.known.words[start + FACTORS])
        values = [self.reversal.read_uniform(wire) for wire in half.wires]
        are_as_known = tuple(value.shape for value in values) == half.shapes
        if not are_as_known or not all(map(lies_plainly, values)):
            self.factors[place] = Set.LEFT
            return
        self.held += values
        for wire, value in zip(half.wires, values):
            self.back_wires[self.known.wires.index(wire)] = value.data_ptr()
        for arena in half.arenas:
            self._take_arena(arena)
        self.given[start] = self._room_for_factors(half)
        self.factors[place] = 0
        for pointer, memory in self.given[start].items():
            self.factors[place + 1 + pointer] = memory.data_ptr()

    def _room_for_factors(self, half: NativeHalf) -> dict[int, torch.Tensor]:
        """Room for factors of all rows, and for sums."""
        rows = self.rows[half.block]
        shapes = {
            made.pointer: ((made.entries * rows,) if made.entries else (), made)
            for made in half.code.results
            if half.given[made.pointer] is not Given.ADDEND
        }
        return {
            pointer: torch.empty((*first, *made.shape), dtype=made.dtype, device="cpu")
            for pointer, (first, made) in shapes.items()
        }

    def _block(self, number: int) -> int:
        return int(self.strip.batch.launches[number, BLOCK])

    def _collect(self) -> None:
        """Hand on the factors of weight gradients."""
        for start, given in self.given.items():
            half = self.known.halves[start]
            rows = int(self.factors[self.known.words[start + FACTORS]])
            if rows <= 0:
                continue
            results = half.code.results
            for item, places in half.collected:
                factors = [given[results[k].pointer][: results[k].entries * rows] for k in places]
                self.reversal.collect(item.key, item.wire, item.how, factors, is_own=True)
            for wire, k in half.sums:
                self.reversal.add_uniform(wire, given[results[k].pointer].clone())
