"""A backward pass over the tape of a run that follows a memory policy: pages come when wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from penstock.autodiff.bounded.graphs import BoundedGraph
from penstock.autodiff.bounded.queued import BoundedQueuedRun
from penstock.autodiff.bounded.runs import Bounded
from penstock.autodiff.page import Page
from penstock.autodiff.queued import QueuedReversal, QueuedTapedRun
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Taping
from penstock.autodiff.way_back import Half, Move, WayBack
from penstock.run.memory.room import Made, with_room
from penstock.run.memory.store import IN_FLIGHT


class BoundedReversal(Reversal):
    """A backward pass that enters each page before its halves run, and leaves it behind them."""

    taped: Bounded
    goes_straight = False

    def __init__(self, run: Bounded, keep: bool, checks_nan: bool) -> None:
        super().__init__(run, keep, checks_nan)
        run.goes_back()

    def run(self, entries: Sequence[Entry]) -> WayBack | None:
        """Go through a tape from its end."""
        pages = [entry for entry in entries if isinstance(entry, Page) and entry.results]
        self._expect(pages[::-1])
        return super().run(entries)

    def go(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Take all steps of a way."""
        steps = zip(reversed(entries), way.steps, strict=True)
        self._expect([entry for entry, step in steps if step and isinstance(entry, Page)])
        super().go(entries, way)

    def _expect(self, pages: Sequence[Page]) -> None:
        self.taped.strategy.expect(pages)

    def _holder(self, page: Page) -> Bounded:
        """Whose strategy has a page."""
        return self.taped

    def run_step(self, entry: Entry, step: tuple[Half, ...] | Move) -> None:
        if not isinstance(step, tuple) or not step:
            super().run_step(entry, step)
            return
        assert isinstance(entry, Page)
        holder = self._holder(entry)
        try:
            self._enter(holder, entry, step)
        except Exception as error:
            self.note(entry, error)
            raise
        super().run_step(entry, step)
        holder.strategy.leave(entry)

    def _enter(self, holder: Bounded, page: Page, halves: tuple[Half, ...]) -> None:
        enter = partial(holder.strategy.enter, holder, page)
        again = partial(holder.strategy.enter_again, holder, page)
        with_room(enter, holder.relieve, again)
        for half in halves:
            if not half.is_bound and half.additions is not None:
                super()._bind(page, half)  # now, before the page counts as used up

    def attempt(self, page: Page, work: Callable[[], Made]) -> Made:
        """The same; other pages leave, and the page is entered anew: it may have gone with them."""
        if page.graph is not None:
            return super().attempt(page, work)
        holder = self._holder(page)

        def again() -> Made:
            holder.strategy.enter(holder, page)
            return work()

        return with_room(work, holder.relieve, again)

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        return unjoined(super()._owned(values))

    def _bind(self, page: Page, half: Half) -> None:
        if not self._holder(page).strategy.is_away(page):  # it is bound when it has come
            super()._bind(page, half)


class BoundedQueuedReversal(BoundedReversal, QueuedReversal):
    """The same on several devices."""

    taped: BoundedQueuedRun
    #: Whether threads of devices are at work.
    is_under_way = False

    def go(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Run the steps of a way on the queues of their devices."""
        self.is_under_way = True
        try:
            super().go(entries, way)
        finally:
            self.is_under_way = False

    def _arena_holder(self, number: int) -> Bounded:
        """The device that has the arena, where others are at work; all of them otherwise."""
        if not self.is_under_way:
            return self.taped
        return self.taped.part(number % len(self.taped.strategies))

    def _expect(self, pages: Sequence[Page]) -> None:
        for strategy in self.taped.strategies:
            strategy.expect(pages)

    def _holder(self, page: Page) -> Bounded:
        return self.taped.part_of(page)


def unjoined(values: torch.Tensor) -> torch.Tensor:
    """A page that was away has come back as one piece of memory: factors that wait for others must
    not hold all of it.
    """
    if values.untyped_storage().nbytes() > 2 * values.nbytes:
        return values.clone()
    return values


def reversal_of(run: Taping, keep: bool, checks_nan: bool) -> Reversal:
    """A backward pass over the tape of a run."""
    if isinstance(run, BoundedQueuedRun):
        return BoundedQueuedReversal(run, keep, checks_nan)
    if isinstance(run, QueuedTapedRun):
        return QueuedReversal(run, keep, checks_nan)
    if isinstance(run, Bounded):
        return BoundedReversal(run, keep, checks_nan)
    return Reversal(run, keep, checks_nan)


def graph_for(run: Taping) -> BoundedGraph | None:
    """Where a replay of a run puts what torch saves; None where nothing bounds it."""
    if not isinstance(run, Bounded):
        return None
    policy = run.strategy.policy
    if policy.kind == "auto" and policy.budget is None:
        return None
    run.step_aside()
    return BoundedGraph(IN_FLIGHT if policy.budget is None else policy.budget)


def tell(run: Taping, graph: BoundedGraph | None) -> None:
    """Note what a replay has put away, if a profile is active."""
    if graph is not None and isinstance(run, Bounded) and run.recorder is not None:
        text = f"Memory ({run.strategy.policy}): {graph.explain()}."
        run.recorder.record.notes.append(text)


def one_at_a_time(run: Taping) -> AbstractContextManager[object]:
    """Where backward passes over a bounded run go one after the other, on whatever threads."""
    return run.passes if isinstance(run, Bounded) else nullcontext()


def rest(run: Taping) -> None:
    """A backward pass is over, or has failed: what it needed of a bounded run is let go."""
    if isinstance(run, Bounded):
        run.rest()
