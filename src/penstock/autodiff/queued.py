"""Tapes and backward passes of programs that run on several devices.

Backward halves run where their blocks do. An exchange is a copy, so its gradients go the other way:
they are sent as soon as the device has them all, and taken in front of the half that needs them.
Gradients of parameters are added up on each device, and then over the devices in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any
from weakref import ref

from penstock.autodiff.page import Page
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Tape
from penstock.autodiff.taped_run import TapedRun
from penstock.autodiff.way_back import CopyBack, WayBack
from penstock.plan.placed import Placement
from penstock.run.flight import Flight, Message
from penstock.run.queued import Batch, OnQueues, Order


class Numbered:
    """Entries of a tape, in any order, each with its place in the schedule."""

    def __init__(self, run: QueuedTapedRun) -> None:
        self._run = ref(run)
        self.found: list[tuple[Order, Entry]] = []

    def append(self, entry: Entry) -> None:
        """Note an entry that the thread at hand has made."""
        run = self._run()
        assert run is not None
        self.found.append((run.now.order, entry))

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> Entry:
        return self.found[position][1]


class QueuedTapedRun(OnQueues, TapedRun):
    """A run on several devices that leaves a tape.

    On the tape copies between devices come as early as they can, so that backward takes their
    gradients as late as it can.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin_tape()
        #: The place of each entry of the tape.
        self.orders: list[Order] = []

    def begin_tape(self) -> None:
        """Note entries as they are made; they are put into order in the end."""
        self.numbered = Numbered(self)
        self.tape = Tape(self.numbered)  # type: ignore[arg-type]

    @property
    def placement(self) -> Placement:
        """Where blocks run."""
        assert self.executable.placement is not None
        return self.executable.placement

    def finish(self) -> None:
        """Put the tape into order."""
        found = sorted(self.numbered.found, key=lambda pair: (pair[0].after, pair[0].number))
        self.orders = [order for order, _ in found]
        self.tape.entries = [entry for _, entry in found]
        del self.numbered, self.flight, self.now
        super().finish()


class QueuedReversal(Reversal):
    """A backward pass on several devices."""

    taped: QueuedTapedRun
    goes_straight = False

    def go(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Run the steps of a way on the queues of their devices."""
        placement = self.taped.placement
        self.indices.bring()
        #: What each device adds to, beside the gradients of slots.
        parts = [self._part() for _ in placement.devices]
        flight = Flight(placement.devices)
        batch = Batch(len(placement.devices))
        steps = zip(reversed(entries), reversed(self.taped.orders), way.steps, strict=True)
        for entry, order, step in steps:
            if isinstance(step, CopyBack):
                self._put_copy(batch, flight, parts, order, step)
            elif step:
                device = self._device(entry)
                work = partial(parts[device].run_step, entry, step)
                batch.add(device, -order.number, flight.task(-order.number, device, work))
        for device, part in enumerate(parts):
            batch.add(device, 1, flight.task(1, device, part.flush))
        flight.put(batch.tasks())
        flight.land()
        for part in parts:
            for wire, gradient in part.uniform_gradients.items():
                self.add_uniform(wire, gradient)

    def _part(self) -> Reversal:
        """This pass as one device sees it: with gradients of parameters of its own."""
        part = copy(self)
        part.uniform_gradients, part.windows = {}, {}
        return part

    def _put_copy(
        self,
        batch: Batch,
        flight: Flight,
        parts: Sequence[Reversal],
        order: Order,
        step: CopyBack,
    ) -> None:
        devices = self.taped.placement.devices
        source, target = step.source % len(devices), step.target % len(devices)
        if source == target:
            work = partial(step.run, parts[source])
            batch.add(source, -order.number, flight.task(-order.number, source, work))
            return
        message = Message()
        take = partial(step.take, parts[target])
        send = flight.sending(-order.number, target, message, take)
        batch.add(target, -order.number, send)

        def receive() -> None:
            gradients = message.take()
            if gradients is not None:
                step.give(parts[source], gradients)

        task = flight.task(-order.after, source, receive)
        batch.add(source, -order.after, task, is_before=True)

    def _device(self, entry: Entry) -> int:
        if isinstance(entry, Page):
            return self.taped.placement.blocks[entry.launch.block]
        return entry.target.arena % len(self.taped.placement.devices)
