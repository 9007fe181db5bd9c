"""Memory policies where several devices run a program: each has the whole budget to itself.

A part is a run as the thread of one device sees it, with the strategy, the tape and the arenas of
that device, which no other thread touches. Rows that have come from another device are not asked
for again: a segment that runs again has kept those that it reads.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from penstock.autodiff.bounded.choosing import strategy_for
from penstock.autodiff.bounded.layouts import layout_of
from penstock.autodiff.bounded.ledger import targets_of
from penstock.autodiff.bounded.runs import Bounded
from penstock.autodiff.page import Page
from penstock.autodiff.queued import QueuedTapedRun
from penstock.plan.schedule import Array
from penstock.run.memory.policy import Policy
from penstock.run.prepared import Prepared, PreparedLaunch


class BoundedQueuedRun(Bounded, QueuedTapedRun):
    """A run on several devices that follows a memory policy."""

    divides = False
    #: The device that this is a part for; None: all of them.
    device: int | None = None

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, policy=policy, **kwargs)
        #: One for each device.
        self.strategies = [strategy_for(policy) for _ in self.placement.devices]
        #: Those that are at work, in forward or in backward.
        self.parts: dict[int, BoundedQueuedRun] = {}

    def part(self, device: int) -> BoundedQueuedRun:
        """The part for a device; only its own thread asks, or one that waits for all."""
        found = self.parts.get(device)
        if found is None:
            found = copy(self)
            found.device, found.strategy, found.parts = device, self.strategies[device], {}
            found.begin_tape()
            self.parts[device] = found
        return found

    def part_of(self, page: Page) -> BoundedQueuedRun:
        """The part for the device that has a page."""
        return self.part(self.placement.blocks[page.launch.block])

    def is_own(self, arena: int) -> bool:
        """Whether an arena is on the device."""
        return arena % len(self.placement.devices) == self.device

    def _step(self, step: Prepared) -> list[Array] | None:
        if self.device is not None:
            return super()._step(step)
        return self.part(self._device_of(step))._step(step)

    def _device_of(self, step: Prepared) -> int:
        if isinstance(step, PreparedLaunch):
            return self.placement.blocks[step.launch.block]
        (target,) = targets_of(step)
        return target.arena % len(self.placement.devices)

    def relieve(self) -> int:
        """Let saved values leave: those of the device, or of all once none is at work, as
        strategies belong to the threads of devices until then.
        """
        if self.device is not None:
            return super().relieve()
        if self.layouts is None:
            self.flight.land()
        return sum([self.part(device).relieve() for device in range(len(self.strategies))])

    def saved_bytes(self) -> int:
        """Bytes that are held for a backward pass."""
        return sum(strategy.store.bytes for strategy in self.strategies)

    def finish(self) -> None:
        """Put the tape into order, and say what was done."""
        self.layouts = list(map(layout_of, self.arenas))
        names = [device.name or "cpu:0" for device in self.placement.devices]
        for device, strategy in enumerate(self.strategies):
            part = self.part(device)
            self.numbered.found += part.numbered.found
            strategy.finish(part)
            if self.recorder is not None:
                self.recorder.record.notes.append(f"{names[device]}: {strategy.explain()}")
        self.parts.clear()
        super().finish()

    def step_aside(self) -> None:
        """Let saved values leave for a graph of torch's own."""
        for strategy in self.strategies:
            strategy.step_aside()

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        self.parts.clear()
        for strategy in self.strategies:
            strategy.rest()
