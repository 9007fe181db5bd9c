"""What a strip leaves for backward: launches that native code has run, as one entry of a tape.

A strip goes back as a whole, by native code (`strip_way.py`). Whoever wants pages finds one for
each launch, made when it is asked for; its saved values are pieces of the memory of the batch.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.page import Page
from penstock.plan.schedule import Integers, Launch
from penstock.run.fused.indices import Indices
from penstock.run.strips.batch import Batch
from penstock.run.strips.code import NativeCode
from penstock.run.strips.words import BLOCK, DISTINCT, ROWS, SAVED, Gone, aligned

if TYPE_CHECKING:
    from penstock.autodiff.taped_run import TapedRun


class Strip:
    """Some launches of a batch, which follow each other."""

    def __init__(self, run: TapedRun, batch: Batch, begin: int, end: int) -> None:
        # The tape belongs to the run.
        self._run = weakref.ref(run)
        self.batch = batch
        self.begin, self.end = begin, end
        #: What has become of each launch of the batch, as far as it is in the strip.
        self.gone = bytearray(end)
        self._pages: dict[int, Page] = {}
        self._is_over = False

    @property
    def run(self) -> TapedRun:
        """The run that has left it."""
        run = self._run()
        assert run is not None
        return run

    def pages(self) -> list[Page]:
        """One for each launch."""
        return [self.page(number) for number in range(self.begin, self.end)]

    def page(self, number: int) -> Page:
        """The page of a launch, which goes back as a page from now on."""
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = self.new_page(number)
            self.gone[number] = Gone.HAS_PAGE
        return page

    def new_page(self, number: int) -> Page:
        """A page of a launch."""
        run, batch = self.run, self.batch
        launch, instances = batch.instruction(number)
        assert isinstance(launch, Launch)
        operands, results = run.flows(launch.block)
        if not operands or not results:
            return Page(launch, run.blocks[launch.block])
        page = Page(launch, run.blocks[launch.block], operands, results, instances=instances)
        page.form, page.indices, page.is_apart = run.whole_form(launch.block), Indices(), True
        if self.gone[number] == Gone.GONE:
            page.consumed = True
        else:
            code = batch.forms.codes[launch.block]
            page.distinct = batch.same_rows(number)
            page.save(self._saved(batch.launches[number], code), is_own=True)
        return page

    def _saved(self, launch: Integers, code: NativeCode) -> list[torch.Tensor]:
        assert self.batch.saved is not None or not code.results
        at = int(launch[SAVED])
        places: dict[int, int] = {}
        for made in sorted(code.results, key=lambda made: made.pointer):
            if made.pointer not in places:
                places[made.pointer] = at
                at += aligned(made.bytes_a_row * int(launch[ROWS]))
        found, rows = [], int(launch[DISTINCT] or launch[ROWS])
        for made in code.results:
            first = places[made.pointer]
            piece = self.batch.saved[first : first + made.bytes_a_row * rows]  # type: ignore[index]
            found.append(piece.view(made.dtype).view(made.entries * rows, *made.shape))
        return found

    def release(self) -> None:
        """Let go of what nobody will need."""
        with self.batch.letting_go:
            left = (n for n in range(self.begin, self.end) if self.gone[n] != Gone.GONE)
            if not self._is_over and not any(map(self._is_wanted, left)):
                self._is_over = True
                self.batch.let_go(self.end - self.begin)

    def _is_wanted(self, number: int) -> bool:
        """Whether what a launch has saved, if anything, may still be read there."""
        page = self._pages.get(number)
        if page is not None:
            return bool(page.saved) and not page.is_used_up
        return bool(self.batch.forms.codes[int(self.batch.launches[number, BLOCK])].results)
