"""A run of which this process carries out its own launches, and exchanges rows for the others.

Every rank plans the whole call and goes through the same instructions. An instruction belongs to
the rank of the device whose arenas it writes to; a copy between ranks is a message. Values that
steer the planner are told to all ranks, so that all go on alike. Results are on every rank in the
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.autodiff.tape import TapedRun
from penstock.distributed.agreement import agree_on_call
from penstock.distributed.kept_plans import PlacedPlan, Replay, plans_of
from penstock.distributed.transport import Transport
from penstock.plan.exchanges import GIVEN
from penstock.plan.limits import current_limits
from penstock.plan.outcome import InBoxes, OnHost, Where
from penstock.plan.placed import PlacedPlanner
from penstock.plan.schedule import (
    Array,
    Await,
    Chunk,
    Copy,
    Instruction,
    Launch,
    Mark,
    Picks,
    Read,
    Span,
    pick,
    slot_count,
)
from penstock.run.engine import Columns, Executable, Run
from penstock.run.fused.indices import Indices
from penstock.run.inputs import install_inputs, read_inputs
from penstock.run.kept_plans import WINDOW
from penstock.run.prepared import PreparedWindow, prepare_receipt
from penstock.run.runner import merged


class Crossing(NamedTuple):
    """A copy from one rank to another."""

    source: int
    target: int
    copy: Copy


class Placing(Run):
    """A run that is one of several; comes before another kind of run."""

    planner: PlacedPlanner | Replay
    transport: Transport
    #: Where the plan is collected.
    plan: PlacedPlan

    def place(self, transport: Transport) -> None:
        """Say who the other ranks are, before the run."""
        self.transport = transport
        self.ranks = ranks_of_devices(self.executable)
        self.plan = PlacedPlan()

    def _carry_out_all(self, columns: Columns) -> None:
        limits = current_limits().with_depth(self.executable.max_depth)
        inputs = read_inputs(self, columns)
        self.call = self.transport.begin_call()
        agree_on_call(self, columns, inputs, limits)
        self.transport.digest.restart(b"call")
        plans, key = plans_of(self.executable), inputs.digest(limits, WINDOW)
        found = None if plans is None else plans.find(key)
        if found is not None:
            self._run_kept(found, columns)
        else:
            self.plan.is_open = plans is not None
            self._plan_and_run(inputs, limits, columns)
            self.plan.outcome = self.outcome
            if plans is not None and self.plan.is_open:
                plans.keep(key, self.plan, self.plan.size)
        with self.transport.guarded(f"call {self.call}"):
            self._spread_results()
            self.transport.finish()

    def _run_kept(self, plan: PlacedPlan, columns: Columns) -> None:
        """Run the plan of an earlier call on the data of this one."""
        assert self.executable.placement is not None
        assert plan.outcome is not None
        self.planner = Replay(plan, self.executable.placement.blocks)
        self.plan.close()
        self.outcome = plan.outcome
        install_inputs(self, columns, plan.outcome.adopted)
        for window, digest in plan.windows:
            self.transport.digest.value = digest
            self._carry_out_part(window)

    def _carry_out_prepared(
        self, window: list[Instruction]
    ) -> tuple[PreparedWindow, list[Array] | None]:
        """Carry out this rank's part of some instructions, and keep them."""
        self.transport.digest.add(window)
        self.plan.add_window(window, self.transport.digest.value)
        return PreparedWindow((), ()), self._carry_out_part(window)

    def _carry_out_part(self, window: list[Instruction]) -> list[Array] | None:
        answer, indices = None, Indices()
        with self.transport.guarded(f"call {self.call}"):
            chunks = (item for item in window if isinstance(item, Chunk))
            self._grow(merged(chunk for chunk in chunks if self.is_mine(chunk.arena)))
            for position, item in enumerate(window):
                if isinstance(item, Copy) and self._crosses_devices(item):
                    self._copy_across(item, window[position:])
                elif not isinstance(item, Chunk | Mark | Await):
                    answer = self._take_turn(item, indices)
        return answer

    # ---- one instruction -------------------------------------------------------------------------

    def _take_turn(self, item: Instruction, indices: Indices) -> list[Array] | None:
        if isinstance(item, Read):
            return self._tell(item)
        if isinstance(item, Launch):
            self.plan.add_launch(self.planner.launched[0])
            if self.ranks[self.planner.blocks[item.block]] == self.transport.rank:
                self._step(self._prepare(item, indices))
            else:
                self.planner.launched.popleft()
            return None
        if self.is_mine(item.target.arena):  # type: ignore[union-attr]
            self._step(self._prepare(item, indices))
        return None

    def _copy_across(self, item: Copy, coming: Sequence[Instruction]) -> None:
        """From one device to another; inputs are on every rank."""
        exchange = self.planner.exchanges.popleft()
        self.plan.add_crossing(exchange)
        source, target = self._rank(item.source.arena), self._rank(item.target.arena)
        if exchange.after != GIVEN and source != target:
            self._cross(Crossing(source, target, item), self._purpose(coming))
        elif target == self.transport.rank:
            device = self.arena(item.target.arena).device
            values = self._gather(item.source).to(device)
            self._step(prepare_receipt(self, item, values))

    def _purpose(self, coming: Sequence[Instruction]) -> str:
        """What rows travel for, by the instructions that come next."""
        reader = next((item for item in coming if isinstance(item, Launch | Read)), None)
        if isinstance(reader, Launch):
            return f"rows for block {self.blocks[reader.block].name}"
        return "rows to be read back" if reader is not None else "rows for what comes next"

    def _cross(self, crossing: Crossing, what: str) -> None:
        source, target, item = crossing
        if source == self.transport.rank:
            self.transport.send(self._gather(item.source), target, what)
        elif target == self.transport.rank:
            arena = self.arena(item.target.arena)
            shape = (slot_count(item.source), *arena.kind.shape)
            values = self.transport.receive(shape, arena.dtype, arena.device, source, what)
            step = prepare_receipt(self, item, values)
            step.put(self, values)
        else:
            self.transport.skip()

    def _tell(self, item: Read) -> list[Array]:
        """The values that steer, on every rank."""
        told = [self._spread(source, "values that steer") for source in item.sources]
        return [values.cpu().numpy() for values in told]

    # ---- what every rank gets --------------------------------------------------------------------

    def _spread_results(self) -> None:
        """From the home device to where results are collected, on every rank."""
        places = [rows for where in self.outcome.results for rows in _places_of(where)]
        for number in {rows.arena for rows in places if not self.is_mine(rows.arena)}:
            arena = self.arena(number)
            arena.forget()  # inputs were there, and are among the results that come
            arena.grow(0, self.outcome.extents[number].end)
        for rows in places:
            values = self._spread(rows, "results")
            if not self.is_mine(rows.arena):
                self.arena(rows.arena).write(rows, values)

    def _spread(self, rows: Span | Picks, what: str) -> torch.Tensor:
        """Values of slots, which one rank has, on every rank."""
        arena, source = self.arena(rows.arena), self._rank(rows.arena)
        mine = self._gather(rows) if source == self.transport.rank else None
        shape = (slot_count(rows), *arena.kind.shape)
        return self.transport.broadcast(mine, shape, arena.dtype, arena.device, source, what)

    # ---- arenas ----------------------------------------------------------------------------------

    def _crosses_devices(self, item: Copy) -> bool:
        return (item.source.arena - item.target.arena) % len(self.ranks) != 0

    def _rank(self, arena: int) -> int:
        return self.ranks[arena % len(self.ranks)]

    def is_mine(self, arena: int) -> bool:
        """Whether an arena belongs to a device of this rank."""
        return self._rank(arena) == self.transport.rank

    def _gather(self, rows: Span | Picks) -> torch.Tensor:
        return self.arena(rows.arena).gather(rows._replace(length=None))


class PlacedRun(Placing, Run):
    """A run of a program in several processes."""


class PlacedTapedRun(Placing, TapedRun):
    """The same, which leaves a tape: crossings are entries of it on every rank."""

    def _cross(self, crossing: Crossing, what: str) -> None:
        super()._cross(crossing, what)
        entries: list[Any] = self.tape.entries
        entries.append(crossing)

    def carry_out(self, columns: Columns) -> None:
        """Plan and run; the digest of the whole schedule is where the backward pass begins."""
        super().carry_out(columns)
        self.digest = self.transport.digest.value


def ranks_of_devices(executable: Executable) -> list[int]:
    """The rank of each device that a program runs on."""
    assert executable.placement is not None
    return [device.rank or 0 for device in executable.placement.devices]


def _places_of(where: Where | OnHost) -> Iterator[Span | Picks]:
    """The rows of an output."""
    if isinstance(where, OnHost):
        return
    if isinstance(where, InBoxes):
        for number in np.unique(where.arenas).tolist():
            yield pick(number, where.slots[where.arenas == number])
        return
    number, slots = where.of(slice(None))
    if len(slots):
        yield pick(number, slots)
