"""Carries out one batch of the native planner's records: strips of launches by native code, and
what lies between them as instructions.

A batch owns the memory that its launches save, in one piece. What native code was told is made for
one run and is not kept.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.plan.native.decode import Decoder, Records
from penstock.plan.schedule import Instruction, Integers
from penstock.run.arenas import Arena
from penstock.run.strips.forms import KnownForms, StripForms
from penstock.run.strips.library import Library
from penstock.run.strips.words import (
    AT,
    IS_NATIVE,
    LAUNCH_WORDS,
    LEAST_RECORD,
    Words,
    address_of,
)

if TYPE_CHECKING:
    from penstock.run.engine import Run


def _bytes(size: int) -> torch.Tensor:
    """Memory of the host, whatever device torch takes for new tensors."""
    return torch.empty(size, dtype=torch.uint8, device="cpu")


class _Scratch(threading.local):
    """Memory for what native code needs for a moment, and the numbers from 0 on."""

    def __init__(self) -> None:
        self.memory, self.counts = _bytes(0), np.arange(1024)

    def room(self, size: int) -> torch.Tensor:
        """So many bytes at least."""
        if size > len(self.memory):
            with torch.inference_mode(False):
                self.memory = _bytes(2 * size)
        return self.memory

    def count_to(self, number: int) -> Integers:
        """The numbers below this one, and perhaps more."""
        if number > len(self.counts):
            self.counts = np.arange(2 * number)
        return self.counts


scratch = _Scratch()


class Batch:
    """One batch of records."""

    def __init__(self, decoder: Decoder, records: Records, forms: KnownForms) -> None:
        self.decoder = decoder
        self.records, self.forms = records, forms
        self.launches = np.zeros((len(records.heads) // LEAST_RECORD + 1, LAUNCH_WORDS), np.int64)
        self._addresses = tuple(map(address_of, (records.heads, records.data, self.launches)))
        #: How many records there are, and a number beyond all slots and rows that they name.
        self.count = self.highest = 0
        #: What launches have saved, and how many of them may be asked for it.
        self.saved: torch.Tensor | None = None
        self._wanted = 0

    def expect(self) -> None:
        """It is known which launches are run natively."""
        self._wanted = int(self.launches[: self.count, IS_NATIVE].sum())

    def let_go(self, count: int) -> None:
        """So many launches will not be asked for what they have saved any more."""
        self._wanted -= count
        if not self._wanted:
            self.saved = None

    def tell(self, words: Words) -> None:
        """Say what does not change from run to run."""
        words.heads, words.data, words.launches = self._addresses
        words.heads_end = len(self.records.heads)
        words.form_of, words.forms = self.forms.addresses
        if self.saved is not None:
            words.saved = self.saved.data_ptr()

    def instruction(self, number: int) -> tuple[Instruction, Integers | None]:
        """What a record stands for, and the instances of a launch."""
        ends = self.launches[number + 1, AT] if number + 1 < self.count else None
        heads = self.records.heads[self.launches[number, AT] : ends]
        records = self.records._replace(heads=heads, chunks=[], given=())
        return next(self.decoder.decode(records))

    def stretches(self) -> Iterator[tuple[int, int, bool]]:
        """Records that follow each other and are all run natively, or none of them."""
        is_native = self.launches[: self.count, IS_NATIVE]
        ends = [*(np.flatnonzero(np.diff(is_native)) + 1).tolist(), self.count]
        begin = 0
        for end in ends:
            if end > begin:
                yield begin, end, bool(is_native[begin])
            begin = end


def carry_out_batch(
    run: Run,
    records: Records,
    forms: StripForms,
    library: Library,
    by_python: Callable[[Batch, int], None],
) -> None:
    """Do all that a batch asks for, in arenas that have grown; one record by Python where it must
    be.
    """
    batch = Batch(forms.decoder, records, forms.known)
    words = Words(sgemm=library.sgemm, dgemm=library.dgemm)
    batch.tell(words)
    kept = _measure(run, batch, words, library)
    for begin, end, is_native in batch.stretches():
        if not is_native:
            for number in range(begin, end):
                by_python(batch, number)
            continue
        at = begin
        while at < end:
            failed = library.forward(ctypes.byref(words), at, end)
            if failed > at:
                run.note_strip(batch, at, failed)
            if failed < end:
                by_python(batch, failed)
            at = failed + 1
    del kept


def _measure(run: Run, batch: Batch, words: Words, library: Library) -> object:
    """Find out what is run natively, and make room for it; what must live as long as it runs."""
    rows = np.zeros(len(batch.forms.starts), np.int64)
    library.count(ctypes.byref(words), address_of(rows))
    arenas, chunks = _arena_words(run.arenas)
    wires = _wire_words(run, batch.forms, rows)
    words.arenas, words.chunks = address_of(arenas), address_of(chunks)
    words.wires = address_of(wires)
    batch.count = library.measure(ctypes.byref(words))
    batch.expect()
    batch.highest = words.highest
    counts = scratch.count_to(batch.highest)
    memory = scratch.room(words.scratch_most)
    words.counts, words.scratch = address_of(counts), memory.data_ptr()
    words.scratch_end = len(memory)
    if words.saved_bytes:
        batch.saved = _bytes(words.saved_bytes)
        words.saved = batch.saved.data_ptr()
    return rows, arenas, chunks, wires, counts, memory


def _arena_words(arenas: Sequence[Arena]) -> tuple[Integers, Integers]:
    """The chunks of arenas, with where slot 0 would be."""
    firsts: list[int] = []
    chunks: list[int] = []
    for arena in arenas:
        is_usable = arena.device.type == "cpu" and not arena.is_held
        found = list(zip(arena.starts, arena.chunks)) if is_usable else []
        if not all(lies_plainly(chunk) for _, chunk in found):
            found = []
        firsts += (len(chunks) // 3, len(found))
        for start, chunk in found:
            row = prod(arena.kind.shape) * chunk.element_size()
            chunks += (start, start + chunk.shape[0], chunk.data_ptr() - start * row)
    return np.array(firsts, np.int64), np.array(chunks, np.int64)


def lies_plainly(values: torch.Tensor) -> bool:
    """Whether a tensor's memory holds its values as they are, one behind the other."""
    return values.is_contiguous() and not values.is_neg() and not values.is_conj()


def _wire_words(run: Run, forms: KnownForms, rows: Integers) -> Integers:
    """Where the uniform values are that blocks with launches take; 0 for others."""
    wires = np.zeros(len(forms.wires) + 1, np.int64)
    for block in np.flatnonzero(rows).tolist():
        for place in forms.wires_of.get(block, ()):
            values = run.uniform(forms.wires[place])
            wires[place] = values.data_ptr() if lies_plainly(values) else 0
    return wires
