"""A backward pass on a rank with several devices: halves run where their blocks do.

Which rows have gradients is known on the host: it goes through the tape, puts work into the lanes
of devices, and waits only where other ranks tell it which of their rows have any.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

from penstock.autodiff.page import Page
from penstock.autodiff.reverse import Reversal, gives_known
from penstock.autodiff.tape import Entry
from penstock.autodiff.way_back import CopyBack, WayBack
from penstock.distributed.lanes import Lanes
from penstock.distributed.reversal import PlacedReversal
from penstock.distributed.turns import Crossing
from penstock.plan.placed import Placement
from penstock.run.flight import Message


class QueuedPlacedReversal(PlacedReversal):
    """One backward pass on the lanes of this rank."""

    def run(self, entries: Sequence[Any]) -> WayBack | None:
        """Go through a tape from its end; in one thread where torch's own autograd finds out which
        gradients a launch gives.
        """
        if not all(isinstance(entry, Crossing) or gives_known(entry) for entry in entries):
            return super().run(entries)
        operation = f"the backward pass of call {self.taped.call}"
        self.lanes = Lanes(self.taped.transport, self._placement.devices, operation)
        #: What each device adds to, beside the gradients of slots.
        self.parts = [self._part() for _ in self.lanes.lanes]
        #: Gradients of inputs whose arenas no device of this rank has.
        self.given: list[tuple[CopyBack, Message]] = []
        try:
            self._put_all(entries)
        except BaseException as error:
            self.lanes.land(error)
            raise
        self.lanes.land()
        for step, message in self.given:
            gradients = message.take()
            assert gradients is not None
            step.give(self, gradients)
        for part in self.parts:
            for wire, gradient in part.uniform_gradients.items():
                self.add_uniform(wire, gradient)
        return None

    def _part(self) -> Reversal:
        part = copy(self)
        part.uniform_gradients, part.windows = {}, {}
        return part

    def _put_all(self, entries: Sequence[Any]) -> None:
        for entry in reversed(entries):
            self.lanes.count += 1
            if isinstance(entry, Crossing):
                self._return(entry)
            else:
                self._put(entry)
        self.lanes.count += 1
        for lane, part in enumerate(self.parts):
            self.lanes.add(lane, part.flush)
        self.lanes.put()

    def _put(self, entry: Entry) -> None:
        step = self._reverse(entry)
        if isinstance(step, CopyBack):
            self._put_copy(step)
        elif step:
            lane = self._lane_of(entry)
            self.lanes.add(lane, partial(self.parts[lane].run_step, entry, step))

    def _put_copy(self, step: CopyBack) -> None:
        source, target = (
            self.lanes.lanes.get(step.source % len(self._placement.devices)),
            self._lane(step.target),
        )
        if source == target:
            self.lanes.add(target, partial(step.run, self.parts[target]))
            return
        message = self.lanes.pass_on(target, partial(step.take, self.parts[target]))
        if source is None:
            self.given.append((step, message))
        else:
            self.lanes.take(source, message, partial(step.give, self.parts[source]))

    def _return(self, crossing: Crossing) -> None:
        lanes, transport = self.lanes, self.taped.transport
        rows = self.rows_back(crossing)
        if rows is None:
            return
        peer, what = crossing.source, rows.what
        if transport.rank == crossing.target:
            lane = self._lane(crossing.copy.target.arena)
            message = lanes.pass_on(lane, self.taking(crossing))
            lanes.take(lanes.messages, message, lambda told: transport.send(told, peer, what))
        elif transport.rank == crossing.source:
            receive = partial(transport.receive, rows, crossing.target)
            message = lanes.pass_on(lanes.messages, receive)
            lanes.put()
            told = message.take()
            lanes.flight.check()
            assert told is not None
            lanes.add(self._lane(crossing.copy.source.arena), self.giving(crossing, told))
        else:
            lanes.add(lanes.messages, transport.skip)

    def _lane_of(self, entry: Entry) -> int:
        if isinstance(entry, Page):
            return self.lanes.lanes[self._placement.blocks[entry.launch.block]]
        return self._lane(entry.target.arena)

    def _lane(self, arena: int) -> int:
        """The lane of an arena's device."""
        return self.lanes.lanes[arena % len(self._placement.devices)]

    @property
    def _placement(self) -> Placement:
        placement = self.taped.executable.placement
        assert placement is not None
        return placement
