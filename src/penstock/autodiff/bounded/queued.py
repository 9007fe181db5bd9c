"""Swapping where several devices run a program: each has a store of its own, with the whole budget.

The thread of a device alone touches its store, in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.autodiff.bounded.strategies import Swapping
from penstock.autodiff.contract import WINDOW
from penstock.autodiff.page import Page
from penstock.autodiff.queued import QueuedReversal, QueuedTapedRun
from penstock.autodiff.tape import Entry
from penstock.autodiff.way_back import Half, Move, WayBack
from penstock.run.memory.policy import Policy


class SwappedQueuedRun(QueuedTapedRun):
    """A run on several devices that leaves a tape, of which pages leave memory."""

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: One for each device.
        self.strategies = [Swapping(policy) for _ in self.placement.devices]

    def strategy_of(self, page: Page) -> Swapping:
        """That of the device that has a page."""
        return self.strategies[self.placement.blocks[page.launch.block]]

    def note(self, entry: Entry) -> None:
        """Take over what a page has saved; inputs are saved like others."""
        super().note(entry)
        if isinstance(entry, Page) and entry.saved:
            self.strategy_of(entry).take_page(entry, frozenset(), {})

    def saved_bytes(self) -> int:
        """Bytes that are held for a backward pass."""
        return sum(strategy.store.bytes for strategy in self.strategies)

    def finish(self) -> None:
        """Put the tape into order, and say what was done."""
        super().finish()
        if self.recorder is not None:
            for device, strategy in zip(self.placement.devices, self.strategies, strict=True):
                self.recorder.record.notes.append(f"{device.name or 'cpu:0'}: {strategy.explain()}")

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        for strategy in self.strategies:
            strategy.rest()


class SwappedQueuedReversal(QueuedReversal):
    """A backward pass on several devices whose pages come when wanted."""

    taped: SwappedQueuedRun

    def go(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Run the steps of a way on the queues of their devices."""
        steps = zip(reversed(entries), way.steps, strict=True)
        wanted = [entry for entry, step in steps if step and isinstance(entry, Page)]
        for strategy in self.taped.strategies:
            strategy.expect(wanted)
        super().go(entries, way)

    def _run_step(self, entry: Entry, step: tuple[Half, ...] | Move) -> None:
        if not isinstance(entry, Page) or not step:
            super()._run_step(entry, step)
            return
        strategy = self.taped.strategy_of(entry)
        strategy.bring(entry)
        super()._run_step(entry, step)
        strategy.leave(entry)

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        return unjoined(super()._owned(values))


def unjoined(values: torch.Tensor) -> torch.Tensor:
    """A page that was away has come back as one piece of memory: factors that wait for others must
    not hold all of it.
    """
    waits = len(values) < WINDOW
    if waits and values.untyped_storage().nbytes() > 2 * values.nbytes:
        return values.clone()
    return values
