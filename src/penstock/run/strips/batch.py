"""Carries out one batch of the native planner's records: strips of launches by native code, and
what lies between them as instructions.

A batch owns the memory that its launches save, in one piece. What native code was told is made for
one run and is not kept.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.plan.native.decode import Decoder, Records
from penstock.plan.schedule import Instruction, Integers
from penstock.run import distinct
from penstock.run.arenas import Arena
from penstock.run.host_memory import empty_on_host
from penstock.run.strips.forms import ANY_ROWS, KnownForms, StripForms
from penstock.run.strips.library import Library
from penstock.run.strips.words import (
    AT,
    DISTINCT,
    LAUNCH_WORDS,
    LEAST_RECORD,
    ROWS,
    SAME,
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
        self.wanted = 0
        #: Which rows of launches are the same.
        self.same: Integers | None = None
        #: Held by whoever finds out whether that is so.
        self.letting_go = threading.Lock()

    def let_go(self, count: int) -> None:
        """So many launches will not be asked for what they have saved any more."""
        self.wanted -= count
        if not self.wanted:
            self.saved = None

    def tell(self, words: Words) -> None:
        """Say what does not change from run to run."""
        words.heads, words.data, words.launches = self._addresses
        words.heads_end = len(self.records.heads)
        words.form_of, words.forms = self.forms.addresses
        if self.saved is not None:
            words.saved = self.saved.data_ptr()
        if self.same is not None:
            words.same = address_of(self.same)

    def same_rows(self, number: int) -> tuple[torch.Tensor, int] | None:
        """For each row of a launch which of the distinct ones it is, and how many there are; None
        where each row was computed.
        """
        launch = self.launches[number]
        if not launch[DISTINCT]:
            return None
        assert self.same is not None
        which = self.same[launch[SAME] : launch[SAME] + launch[ROWS]]
        return torch.from_numpy(which), int(launch[DISTINCT])

    def instruction(self, number: int) -> tuple[Instruction, Integers | None]:
        """What a record stands for, and the instances of a launch."""
        ends = self.launches[number + 1, AT] if number + 1 < self.count else None
        heads = self.records.heads[self.launches[number, AT] : ends]
        records = self.records._replace(heads=heads, chunks=[], given=())
        return next(self.decoder.decode(records))


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
    rows = np.zeros(len(forms.known.starts), np.int64)
    least = distinct.LEAST_ROWS if run.shares_rows else ANY_ROWS
    most = int(100 * distinct.MOST_SHARE)
    words = library.new_words(rows, least_shared=least, most_shared=most)
    batch.tell(words)
    library.count(ctypes.byref(words), words.rows)
    kept = _measure(run, batch, words, library, rows)
    at = 0
    while at < batch.count:
        stopped = library.forward(ctypes.byref(words), at, batch.count)
        if stopped > at:
            run.note_strip(batch, at, stopped)
        if stopped < batch.count:
            by_python(batch, stopped)
        at = stopped + 1
    library.end_pass()
    del kept


def _measure(run: Run, batch: Batch, words: Words, library: Library, rows: Integers) -> object:
    """Find out what is run natively, and make room for it; what must live as long as it runs."""
    arenas, chunks = _arena_words(run.arenas)
    wires = _wire_words(run, batch.forms, rows)
    words.arenas, words.chunks, words.wires = map(address_of, (arenas, chunks, wires))
    batch.count = library.measure(ctypes.byref(words))
    batch.wanted, batch.highest = words.natives, words.highest
    counts = scratch.count_to(batch.highest)
    memory = scratch.room(words.scratch_most)
    words.counts, words.scratch = address_of(counts), memory.data_ptr()
    words.scratch_end = len(memory)
    if words.saved_bytes:
        batch.saved = empty_on_host((words.saved_bytes,), torch.uint8)
        words.saved = batch.saved.data_ptr()
    if words.same_words:
        batch.same = np.empty(words.same_words, np.int64)
        words.same = address_of(batch.same)
    return rows, arenas, chunks, wires, counts, memory


def _arena_words(arenas: Sequence[Arena]) -> tuple[array[int], array[int]]:
    """The chunks of arenas and the bytes of a row, with where slot 0 would be."""
    firsts, chunks = array("q"), array("q")
    for arena in arenas:
        is_usable = not arena.is_held and all(map(lies_plainly, arena.chunks))
        found = list(zip(arena.starts, arena.chunks)) if is_usable else []
        row = prod(arena.kind.shape) * arena.dtype.itemsize
        firsts.extend((len(chunks) // 3, len(found), row))
        for start, chunk in found:
            chunks.extend((start, start + chunk.shape[0], chunk.data_ptr() - start * row))
    return firsts, chunks


def lies_plainly(values: torch.Tensor) -> bool:
    """Whether a tensor's memory is the host's and holds its values as they are, one behind the
    other.
    """
    is_dense = values.is_cpu and values.is_contiguous()
    return is_dense and not values.is_neg() and not values.is_conj()


def _wire_words(run: Run, forms: KnownForms, rows: Integers) -> array[int]:
    """Where the uniform values are that blocks with launches take; 0 for others."""
    wires = array("q", bytes(8 * (len(forms.wires) + 1)))
    for block, count in enumerate(rows.tolist()):
        for place in forms.wires_of.get(block, ()) if count else ():
            values = run.uniform(forms.wires[place])
            wires[place] = values.data_ptr() if lies_plainly(values) else 0
    return wires
