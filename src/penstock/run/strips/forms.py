"""What native code knows of the blocks of a program, for runs of one purpose.

A block that was run compiled is read into words; until then, and where that cannot be, its launches
are left to Python. What is known is handed out as it stands: later additions make new arrays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.native.decode import Decoder
from penstock.plan.schedule import Integers, Shared
from penstock.run.batched.products import most_small_rows
from penstock.run.blocks import RunnableBlock
from penstock.run.fused.form import FusedForm
from penstock.run.prepared import Prepared, PreparedLaunch
from penstock.run.strips.arguments import arguments_of
from penstock.run.strips.code import NativeCode, read_code
from penstock.run.strips.library import library
from penstock.run.strips.words import MOST_ITEMS, Item, address_of

if TYPE_CHECKING:
    from penstock.run.runner import Runner

log = logging.getLogger("penstock")

#: More rows than any launch has.
ANY_ROWS = 1 << 62


@dataclass(frozen=True, eq=False)
class KnownForms:
    """The forms of all blocks, as far as they are known."""

    #: For each block where its words begin.
    starts: Integers
    words: Integers
    #: The uniform values that native code takes, and for each of its blocks which of them.
    wires: tuple[int, ...]
    wires_of: dict[int, tuple[int, ...]]
    #: The code of each block that has some.
    codes: dict[int, NativeCode]

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """Where starts and words are."""
        return address_of(self.starts), address_of(self.words)


class StripForms:
    """The forms of the blocks of a program, for runs of one purpose."""

    def __init__(self, decoder: Decoder, blocks: Sequence[RunnableBlock]) -> None:
        self.decoder, self._blocks = decoder, blocks
        self._codes: dict[int, NativeCode] = {}
        #: How often Python has run launches of blocks that have no code.
        self._tries = [0] * len(blocks)
        self._adding = threading.Lock()
        self.known = self._found()

    def learn(self, run: Runner, step: Prepared) -> None:
        """Read the code of a launch that Python has run compiled, looked for more and more
        rarely.
        """
        if not isinstance(step, PreparedLaunch) or step.launch.block >= len(self.decoder.forms):
            return
        block = step.launch.block
        self._tries[block] += 1
        if block in self._codes or self._tries[block] & (self._tries[block] - 1):
            return
        form = run.compiled_form(step)
        if form is not None and run.may_share(step):  # it has run for distinct rows so far
            form.ready(step.launch.rows)
        code = None if form is None else native_code(form)
        if code is not None and self._fits(block) and all(made.entries for made in code.results):
            with self._adding:
                self._codes[block] = code
                self.known = self._found()

    def _fits(self, block: int) -> bool:
        form = self.decoder.forms[block]
        return len(form.operands) + len(form.targets) <= MOST_ITEMS

    def _found(self) -> KnownForms:
        starts: list[int] = []
        words: list[int] = []
        wires: dict[int, int] = {}
        wires_of: dict[int, tuple[int, ...]] = {}
        for block in range(len(self.decoder.forms)):
            starts.append(len(words))
            words += self._words(block, wires)
            if block in self._codes:
                operands = self.decoder.forms[block].operands
                wires_of[block] = tuple(
                    wires[item.wire] for item in operands if isinstance(item, Shared)
                )
        return KnownForms(
            np.array(starts, np.int64),
            np.array(words, np.int64),
            tuple(wires),
            wires_of,
            dict(self._codes),
        )

    def _words(self, block: int, wires: dict[int, int]) -> list[int]:
        form, code = self.decoder.forms[block], self._codes.get(block)
        items: list[int] = []
        for operand in form.operands:
            if isinstance(operand, Shared):
                wire = wires.setdefault(operand.wire, len(wires)) if code is not None else 0
                items += (Item.UNIFORM, wire)
            elif isinstance(operand, int):
                items += (Item.SLOTS, operand)
            else:
                items += (Item.HOSTED if operand == "int64" else Item.OTHER, 0)
        listed = form.listed - len(form.targets)
        saved = [] if code is None else row_bytes(code)
        address = 0 if code is None else code.words.ctypes.data
        most = 0 if code is None else self._most_rows(block, code)
        may_share = code is not None and self._may_share(block)
        sizes = (len(form.operands), len(form.targets), listed, len(saved))
        head = (address, most, *sizes, int(may_share))
        return [*head, *items, *form.targets, *saved]

    def _may_share(self, block: int) -> bool:
        """Whether it may pay to look which rows of its launches are the same."""
        sharing = self._blocks[block].sharing
        return sharing.has_products and bool(sharing.whole_numbers)

    def _most_rows(self, block: int, code: NativeCode) -> int:
        """The rows up to which launches are run natively: where native products of many rows are
        slow, not those that oneDNN multiplies.
        """
        loaded = library()
        if loaded is None or loaded.is_fast:
            return ANY_ROWS
        return min([ANY_ROWS, *(most_small_rows(*sizes) for sizes in code.products)])


def native_code(form: FusedForm) -> NativeCode | None:
    """The code of a launch that runs compiled, read once; None where there is none."""
    if form.compiled is None or form.code.device.type != "cpu":
        return None
    if form.native is None:
        code = read_code(form.compiled, arguments_of(form.code), form.name)
        form.native = code if code is not None and _can_be_given(code) else False
    return form.native or None


def _can_be_given(code: NativeCode) -> bool:
    """Whether there is room for all results, in memory of their own."""
    return code.pointers <= MOST_ITEMS and not any(made.is_argument for made in code.results)


def row_bytes(code: NativeCode) -> list[int]:
    """For each pointer to results the bytes of a row there."""
    sizes = {made.pointer: made.bytes_a_row for made in code.results}
    return [sizes[pointer] for pointer in range(code.pointers)]
