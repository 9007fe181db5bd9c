"""Takes strips back by native code, together with all else that is on a tape.

Native code goes from launch to launch as long as it knows how: it looks which rows have cotangents,
runs the half for them, and adds gradients to slots. Where it stops, it says why; what it has no
code for goes back as pages, one by one.
"""

from __future__ import annotations

import ctypes
from array import array
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.autodiff.page import second_backward
from penstock.autodiff.strip_halves import (
    FACTOR_PLACES,
    FACTORS,
    GONE_BACK,
    MOST_BACK,
    KnownHalves,
    NativeHalf,
    StripHalves,
)
from penstock.autodiff.strips import Strip
from penstock.run.host_memory import empty_on_host
from penstock.run.strips.batch import lies_plainly, scratch
from penstock.run.strips.library import library
from penstock.run.strips.words import (
    BLOCK,
    GRADIENT_WORDS,
    ROWS,
    Given,
    Set,
    Why,
    address_of,
)

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.tape import Tape
    from penstock.autodiff.taped_run import TapedRun


#: Factors wait for one contraction until they are so many rows and bytes: it would not be faster
#: with more of them, and these are in the caches still. A launch of more rows has room for all.
WAITING_ROWS, WAITING_BYTES = 1024, 4 << 20


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
        #: How many rows each block was launched for.
        self.rows = np.zeros(len(strip.batch.decoder.forms), np.int64)
        #: For each arena where its gradients are, as far as native code knows them.
        self.gradients = np.zeros((len(reversal.extents), GRADIENT_WORDS), np.int64)
        self.taken: set[int] = set()
        self.words = found.new_words(self.rows, keeps=int(reversal.keep))
        #: What a pass has for each half: rows of factors, and where each value given is.
        self.factors, self.back_wires = array("q"), array("q")
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
        self.library.add_rows(ctypes.byref(words), words.rows, strip.begin, strip.end)
        self.counts = scratch.count_to(strip.batch.highest)
        words.counts, words.gone = address_of(self.counts), address_of(strip.gone)
        words.zeros, words.gradients = address_of(self.halves.zeros), address_of(self.gradients)
        self._take_room(1)
        for block, rows in enumerate(self.rows.tolist()):
            flowing = int(self.halves.known.half_of[block, 0]) if rows else 0
            for result, arena in enumerate(strip.batch.decoder.forms[block].targets):
                if flowing > 0 and flowing >> result & 1:
                    self._take_arena(arena)
        self._take_known(self.halves.known)

    def _take_room(self, size: int) -> None:
        self.memory = scratch.room(size)
        self.words.scratch, self.words.scratch_end = self.memory.data_ptr(), len(self.memory)

    def _take_known(self, known: KnownHalves) -> None:
        """Go on with these halves."""
        self.known, words = known, self.words
        self.factors.extend([Set.UNKNOWN] * (known.pass_words - len(self.factors)))
        self.back_wires.extend([0] * (len(known.wires) - len(self.back_wires)))
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
        if why == Why.FULL:
            self._collect_half(int(words.set))
            self._make_room(int(words.set), self._rows(number))
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
        self._make_room(start, WAITING_ROWS)

    def _make_room(self, start: int, rows: int) -> None:
        """Make room for what a half gives for so many rows at least, unless it has fewer."""
        half, place = self.known.halves[start], int(self.known.words[start + FACTORS])
        rows = min(max(rows, _rows_that_wait(half)), int(self.rows[half.block]))
        self.given[start] = _room_for_factors(half, rows)
        self.factors[place + GONE_BACK], self.factors[place + MOST_BACK] = 0, rows
        for pointer, memory in self.given[start].items():
            self.factors[place + FACTOR_PLACES + pointer] = memory.data_ptr()

    def _block(self, number: int) -> int:
        return int(self.strip.batch.launches[number, BLOCK])

    def _rows(self, number: int) -> int:
        return int(self.strip.batch.launches[number, ROWS])

    def _collect(self) -> None:
        """Hand on what all halves have given."""
        for start in self.given:
            self._collect_half(start)

    def _collect_half(self, start: int) -> None:
        """Hand on the factors of weight gradients, and sums."""
        half, given = self.known.halves[start], self.given[start]
        rows = self.factors[self.known.words[start + FACTORS] + GONE_BACK]
        if rows <= 0:
            return
        results = half.code.results
        for item, places in half.collected:
            made = [(given[results[k].pointer], results[k].entries * rows) for k in places]
            factors = [all_ if all_.shape[0] == n else all_[:n] for all_, n in made]
            self.reversal.collect(item.key, item.wire, item.how, factors, is_own=True)
        for wire, k in half.sums:
            self.reversal.add_uniform(wire, given[results[k].pointer].clone())


def _rows_that_wait(half: NativeHalf) -> int:
    sizes = {made.pointer: made.bytes_a_row for made in half.code.results}
    size = sum(sizes[k] for k, what in enumerate(half.given) if what is Given.FACTOR)
    return max(WAITING_ROWS, WAITING_BYTES // max(1, size))


def _room_for_factors(half: NativeHalf, rows: int) -> dict[int, torch.Tensor]:
    """Room for factors of so many rows, and for sums."""
    shapes = {
        made.pointer: ((made.entries * rows,) if made.entries else (), made)
        for made in half.code.results
        if half.given[made.pointer] is not Given.ADDEND
    }
    return {
        pointer: empty_on_host((*first, *made.shape), made.dtype)
        for pointer, (first, made) in shapes.items()
    }
