"""Takes strips back by native code, together with all else that is on a tape.

Native code goes from launch to launch as long as it knows how: it looks which rows have cotangents,
runs the half for them, and adds gradients to slots. Where it stops, it says why; what it has no
code for goes back as pages, one by one.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.autodiff.page import second_backward
from penstock.autodiff.strip_gathering import Gathered
from penstock.autodiff.strip_halves import (
    FACTORS,
    MEMORY,
    MOST_WAITING,
    WAITING,
    KnownHalves,
    NativeHalf,
    StripHalves,
    likeness_of,
)
from penstock.autodiff.strips import Strip
from penstock.run.host_memory import HOST, empty_on_host
from penstock.run.strips.batch import lies_plainly, scratch
from penstock.run.strips.library import library
from penstock.run.strips.words import (
    BLOCK,
    GRADIENT_WORDS,
    IS_WRITTEN,
    PLACE,
    UNIFORM_WORDS,
    Set,
    Why,
    address_of,
    aligned,
)

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.tape import Tape
    from penstock.autodiff.taped_run import TapedRun


#: Factors wait for one contraction until they are so many rows and bytes: it would not be faster
#: with more of them, and these are in the caches still.
WAITING_ROWS, WAITING_BYTES = 1024, 4 << 20

_BYTE = torch.uint8


def go_through(reversal: Reversal, tape: Tape) -> None:
    """Take all steps of a tape back."""
    strips = [part for part in tape.parts if isinstance(part, Strip)]
    native = _NativePass(reversal, strips)
    for part in reversed(tape.parts):
        if isinstance(part, Strip):
            native.go(part)
        else:
            reversal.reverse_one(part)
    native.finish()
    reversal.flush()


def _halves_of(run: TapedRun) -> StripHalves:
    """What is known of the backward halves of such runs."""
    known = run.executable.strips.halves
    halves: StripHalves | None = known.get(run.purpose)
    return known.setdefault(run.purpose, StripHalves.of(run)) if halves is None else halves


class _NativePass:
    """The strips of a tape in one backward pass."""

    def __init__(self, reversal: Reversal, strips: Sequence[Strip]) -> None:
        found = library()
        assert found is not None
        self.reversal, self.library = reversal, found
        self.strip = strips[0]
        self.halves = _halves_of(self.strip.run)
        forms = self.strip.batch.decoder.forms
        #: How many rows each block was launched for.
        self.rows = np.zeros(len(forms), np.int64)
        #: For each arena where its gradients are, as far as native code knows them.
        self.gradients = np.zeros((len(reversal.extents), GRADIENT_WORDS), np.int64)
        self.taken: set[int] = set()
        self.words = found.new_words(self.rows, keeps=int(reversal.keep))
        #: What a pass has for each half, where each value given is, and where each gradient of a
        #: uniform value.
        self.factors, self.back_wires, self.places = array("q"), array("q"), array("q")
        #: The gradients of uniform values, and all else that must live as long as the pass.
        self.uniform: dict[int, torch.Tensor] = {}
        self.held: list[torch.Tensor] = []
        self._begin(strips)

    def go(self, strip: Strip) -> None:
        """Take all launches of a strip back."""
        self._turn_to(strip)
        at = strip.end
        while at > strip.begin:
            stopped = self.library.backward(ctypes.byref(self.words), at, strip.begin)
            at = stopped + 1
            if stopped < 0:
                break
            if not self._help(stopped):
                self.reversal.reverse_one(strip.page(stopped))
                at = stopped
        strip.release()

    def finish(self) -> None:
        """Contract what waits, and hand on the gradients of uniform values."""
        halves = np.array(list(self.known.halves), np.int64)
        if not self.library.collect(ctypes.byref(self.words), address_of(halves), len(halves)):
            raise RuntimeError("compiled code of a backward pass failed half-way")
        self.library.end_pass()
        for place, wire in enumerate(self.known.gathering):
            if wire in self.uniform and self.places[UNIFORM_WORDS * place + IS_WRITTEN]:
                self.reversal.add_uniform(wire, self.uniform[wire])

    def _begin(self, strips: Sequence[Strip]) -> None:
        words, batch = self.words, self.strip.batch
        for strip in strips:
            strip.batch.tell(words)
            self.library.add_rows(ctypes.byref(words), words.rows, strip.begin, strip.end)
        words.zeros, words.gradients = address_of(self.halves.zeros), address_of(self.gradients)
        self._take_room(1)
        for block, rows in enumerate(self.rows.tolist()):
            flowing = int(self.halves.known.half_of[block, 0]) if rows else 0
            for result, arena in enumerate(batch.decoder.forms[block].targets):
                if flowing > 0 and flowing >> result & 1:
                    self._take_arena(arena)
        self._take_known(self.halves.known)

    def _turn_to(self, strip: Strip) -> None:
        """Say which launches there are now."""
        words, self.strip = self.words, strip
        # Another pass may let go of it meanwhile.
        self.saved = strip.batch.saved
        strip.batch.tell(words)
        self.counts = scratch.count_to(strip.batch.highest)
        words.counts, words.gone = address_of(self.counts), address_of(strip.gone)

    def _take_room(self, size: int) -> None:
        self.memory = scratch.room(size)
        self.words.scratch, self.words.scratch_end = self.memory.data_ptr(), len(self.memory)

    def _take_known(self, known: KnownHalves) -> None:
        """Go on with these halves."""
        self.known, words = known, self.words
        self.factors.extend([Set.UNKNOWN] * (known.pass_words - len(self.factors)))
        self.back_wires.extend([0] * (len(known.wires) - len(self.back_wires)))
        self.places.extend([0] * (UNIFORM_WORDS * len(known.gathering) - len(self.places)))
        words.half_of, words.halves = known.addresses
        words.factors, words.back_wires = address_of(self.factors), address_of(self.back_wires)
        words.uniform_gradients = address_of(self.places)

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
        known = self.known
        half, place = known.halves[start], int(known.words[start + FACTORS])
        values = [self.reversal.read_uniform(wire) for wire in half.wires]
        are_as_known = tuple(map(likeness_of, values)) == half.likenesses
        if not are_as_known or not all(map(lies_plainly, values)):
            self.factors[place] = Set.LEFT
            return
        self.held += values
        for wire, value in zip(half.wires, values):
            self.back_wires[known.wires.index(wire)] = value.data_ptr()
        for arena in half.arenas:
            self._take_arena(arena)
        for item in half.gathered:
            self._take_gradient(item)
        rows = self._rows_that_wait(half)
        memory = empty_on_host((sum(aligned(size * rows) for size in half.factor_bytes),), _BYTE)
        self.held.append(memory)
        self.factors[place + WAITING], self.factors[place + MOST_WAITING] = 0, rows
        self.factors[place + MEMORY] = memory.data_ptr()

    def _take_gradient(self, item: Gathered) -> None:
        """Have native code know where the gradient of a uniform value is to be."""
        if item.wire not in self.uniform:
            made = torch.empty(item.shape, dtype=item.dtype, device=HOST)
            place = UNIFORM_WORDS * self.known.gathering.index(item.wire)
            self.uniform[item.wire], self.places[place + PLACE] = made, made.data_ptr()

    def _rows_that_wait(self, half: NativeHalf) -> int:
        """There is room for a piece of a launch at least, and for no more rows than there are."""
        most = max(WAITING_ROWS, WAITING_BYTES // max(1, sum(half.factor_bytes)))
        return min(max(most, int(self.words.piece_rows)), int(self.rows[half.block]))

    def _block(self, number: int) -> int:
        return int(self.strip.batch.launches[number, BLOCK])
