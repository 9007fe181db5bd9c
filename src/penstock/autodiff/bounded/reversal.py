"""A backward pass over the tape of a run that follows a memory policy: pages come when wanted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.autodiff.bounded.queued import SwappedQueuedReversal, SwappedQueuedRun, unjoined
from penstock.autodiff.bounded.runs import Bounded
from penstock.autodiff.page import Page
from penstock.autodiff.queued import QueuedReversal, QueuedTapedRun
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Taping
from penstock.autodiff.way_back import Half, Move, WayBack


class BoundedReversal(Reversal):
    """A backward pass that enters each page before its halves run, and leaves it behind them."""

    taped: Bounded

    def run(self, entries: Sequence[Entry]) -> WayBack | None:
        """Go through a tape from its end."""
        pages = [entry for entry in entries if isinstance(entry, Page) and entry.results]
        self.taped.strategy.expect(pages[::-1])
        return super().run(entries)

    def go(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Take all steps of a way."""
        steps = zip(reversed(entries), way.steps, strict=True)
        wanted = [entry for entry, step in steps if isinstance(step, tuple) and step]
        self.taped.strategy.expect(wanted)  # type: ignore[arg-type]
        super().go(entries, way)

    def _run_step(self, entry: Entry, step: tuple[Half, ...] | Move) -> None:
        if not isinstance(step, tuple) or not step:
            super()._run_step(entry, step)
            return
        assert isinstance(entry, Page)
        strategy = self.taped.strategy
        strategy.enter(self.taped, entry)
        for half in step:
            if not half.is_bound and half.additions is not None:
                super()._bind(entry, half)  # now, before the page counts as used up
        super()._run_step(entry, step)
        strategy.leave(entry)

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        return unjoined(super()._owned(values))

    def _bind(self, page: Page, half: Half) -> None:
        if not self.taped.strategy.is_away(page):  # it is bound when it has come
            super()._bind(page, half)


def reversal_of(run: Taping, keep: bool, checks_nan: bool) -> Reversal:
    """A backward pass over the tape of a run."""
    if isinstance(run, SwappedQueuedRun):
        return SwappedQueuedReversal(run, keep, checks_nan)
    if isinstance(run, QueuedTapedRun):
        return QueuedReversal(run, keep, checks_nan)
    kind = BoundedReversal if isinstance(run, Bounded) else Reversal
    return kind(run, keep, checks_nan)


def rest(run: Taping) -> None:
    """A backward pass is over, or has failed: what it needed of a bounded run is let go."""
    if isinstance(run, Bounded | SwappedQueuedRun):
        run.rest()
