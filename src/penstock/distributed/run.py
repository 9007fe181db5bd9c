"""A run of which this process carries out its own launches, and exchanges rows for the others.

Every rank goes through the same stages of one plan, whether it plans them or knows them. An
instruction belongs to the rank of the device whose arenas it writes to; a copy between ranks is a
message. Values that steer the planner are told to all ranks, so that all go on alike. Results are
on every rank in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from penstock.autodiff.taped_run import TapedRun
from penstock.distributed.agreement import agree_on_call
from penstock.distributed.course import Course
from penstock.distributed.kept_plans import Known, PlacedPlan, Stage, plans_of
from penstock.distributed.transport import Transport
from penstock.distributed.turns import Cross, Crossing, Own, Rows, Spread, Tell, Turn
from penstock.plan.exchanges import GIVEN
from penstock.plan.limits import Limits, current_limits
from penstock.plan.machine import Steps
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
from penstock.run.engine import Columns, Run
from penstock.run.executable import Executable
from penstock.run.fused.indices import Indices
from penstock.run.inputs import install_inputs, read_inputs
from penstock.run.kept_plans import WINDOW
from penstock.run.prepared import prepare_fetch, prepare_put


class Placing(Run):
    """A run that is one of several; comes before another kind of run."""

    planner: PlacedPlanner | Known
    transport: Transport

    def place(self, transport: Transport) -> None:
        """Say who the other ranks are, before the run."""
        self.transport = transport
        self.ranks = ranks_of_devices(self.executable)

    def _carry_out_all(self, columns: Columns) -> None:
        limits = current_limits().with_depth(self.executable.max_depth)
        inputs = read_inputs(self, columns)
        self.call = self.transport.begin_call()
        agree_on_call(self, columns, inputs, limits)
        self.transport.digest.restart(b"call")
        plans, key = plans_of(self.executable), inputs.digest(limits, WINDOW)
        plan = (None if plans is None else plans.find(key)) or PlacedPlan()
        course = Course(self, plan, inputs, limits)
        install_inputs(self, columns, plan.adopted)
        self._follow(course)
        with self.transport.guarded(f"call {self.call}"):
            self._spread_results()
            self.transport.finish()
        if plans is not None:
            plans.keep(key, plan, plan.size)

    def _follow(self, course: Course) -> None:
        """Carry out stage after stage. What the planner finds wrong, it finds on every rank."""
        answer: list[Array] | None = None
        while (stage := course.next(answer)) is not None:
            self.transport.digest.value = stage.digest
            with self.transport.guarded(f"call {self.call}"):
                self._grow(stage.growth)
                if stage.turns is None:
                    answer = self._take_first(stage, course.window)
                else:
                    answer = self._take(stage.turns)
            if stage.outcome is not None:
                self.outcome = stage.outcome

    def new_planner(self, limits: Limits) -> PlacedPlanner:
        """A planner for this call."""
        seed = self.seed.number if self.executable.graph.has_random else 0
        planner = self.executable.new_planner(limits, self.count, seed, self.numbers)
        assert isinstance(planner, PlacedPlanner)
        self.machine = planner
        return planner

    def plan_window(
        self, planner: PlacedPlanner, steps: Steps, answer: list[Array] | None
    ) -> tuple[list[Instruction], bool]:
        """The next instructions, given what was read, and whether they are the last."""
        return self._plan(planner, steps, answer)

    # ---- what this rank does of a stage ----------------------------------------------------------

    def _take_first(self, stage: Stage, window: Sequence[Instruction]) -> list[Array] | None:
        """Find this rank's part of some instructions, each when the one before is done."""
        answer, indices = None, Indices()
        turns: list[Turn] = []
        for position in range(len(window)):
            with torch.inference_mode(False):  # it may serve runs that are differentiated
                turn = self._turn(window, position, indices)
            if turn is not None:
                turns.append(turn)
                answer = self._take((turn,))
        stage.turns = tuple(turns)
        return answer

    def _turn(self, window: Sequence[Instruction], position: int, indices: Indices) -> Turn | None:
        item, planner = window[position], self.planner
        assert isinstance(planner, PlacedPlanner)
        if isinstance(item, Chunk | Mark | Await):
            return None
        if isinstance(item, Read):
            spread = (self._spread_of(source, "values that steer") for source in item.sources)
            return Tell(tuple(spread))
        if isinstance(item, Copy) and self._crosses_devices(item):
            exchange = planner.exchanges.popleft()
            source, target = self._rank(item.source.arena), self._rank(item.target.arena)
            if exchange.after != GIVEN and source != target:  # inputs are on every rank
                return self._cross_of(Crossing(source, target, item), window[position:])
        is_mine = (
            self.ranks[planner.blocks[item.block]] == self.transport.rank
            if isinstance(item, Launch)
            else self.is_mine(item.target.arena)
        )
        if is_mine:
            return Own(self._prepare(item, indices))
        if isinstance(item, Launch):
            planner.launched.popleft()
        return None

    def _cross_of(self, crossing: Crossing, coming: Sequence[Instruction]) -> Cross:
        item, arena = crossing.copy, self.arena(crossing.copy.target.arena)
        shape = (slot_count(item.source), *arena.kind.shape)
        rows = Rows(shape, arena.dtype, arena.device, self._purpose(coming))
        if crossing.source == self.transport.rank:
            return Cross(crossing, rows, fetch=prepare_fetch(self, item.source))
        if crossing.target == self.transport.rank:
            return Cross(crossing, rows, put=prepare_put(self, item.target))
        return Cross(crossing, rows)

    def _purpose(self, coming: Sequence[Instruction]) -> str:
        """What rows travel for, by the instructions that come next."""
        reader = next((item for item in coming if isinstance(item, Launch | Read)), None)
        if isinstance(reader, Launch):
            return f"rows for block {self.blocks[reader.block].name}"
        return "rows to be read back" if reader is not None else "rows for what comes next"

    def _spread_of(self, slots: Span | Picks, what: str) -> Spread:
        """Values of slots, which one rank has, for every rank."""
        arena, source = self.arena(slots.arena), self._rank(slots.arena)
        rows = Rows((slot_count(slots), *arena.kind.shape), arena.dtype, arena.device, what)
        is_mine = source == self.transport.rank
        return Spread(source, rows, prepare_fetch(self, slots) if is_mine else None)

    def _take(self, turns: Sequence[Turn]) -> list[Array] | None:
        """Take turns; what was read, if the last one reads."""
        answer = None
        for turn in turns:
            if isinstance(turn, Own):
                self._step(turn.step)
            elif isinstance(turn, Cross):
                self._cross(turn)
            else:
                answer = [self._tell(part) for part in turn.parts]
        return answer

    def _cross(self, turn: Cross) -> None:
        if turn.fetch is not None:
            self.transport.send(turn.fetch(self), turn.crossing.target, turn.rows.what)
        elif turn.put is not None:
            turn.put(self, self.transport.receive(turn.rows, turn.crossing.source))
        else:
            self.transport.skip()

    def _tell(self, part: Spread) -> Array:
        """Values that steer, on every rank."""
        mine = None if part.fetch is None else part.fetch(self)
        return self.transport.tell(mine, part.rows, part.source)

    # ---- what every rank gets --------------------------------------------------------------------

    def _spread_results(self) -> None:
        """From the home device to where results are collected, on every rank."""
        places = [rows for where in self.outcome.results for rows in _places_of(where)]
        for number in {rows.arena for rows in places if not self.is_mine(rows.arena)}:
            arena = self.arena(number)
            arena.forget()  # inputs were there, and are among the results that come
            arena.grow(0, self.outcome.extents[number].end)
        for place in places:
            source, rows, fetch = self._spread_of(place, "results")
            mine = None if fetch is None else fetch(self)
            values = self.transport.broadcast(mine, rows, source)
            if mine is None:
                self.arena(place.arena).write(place, values)

    # ---- arenas ----------------------------------------------------------------------------------

    def _crosses_devices(self, item: Copy) -> bool:
        return (item.source.arena - item.target.arena) % len(self.ranks) != 0

    def _rank(self, arena: int) -> int:
        return self.ranks[arena % len(self.ranks)]

    def is_mine(self, arena: int) -> bool:
        """Whether an arena belongs to a device of this rank."""
        return self._rank(arena) == self.transport.rank


class PlacedRun(Placing, Run):
    """A run of a program in several processes."""


class PlacedTapedRun(Placing, TapedRun):
    """The same, which leaves a tape: crossings are entries of it on every rank."""

    def _cross(self, turn: Cross) -> None:
        super()._cross(turn)
        entries: list[Any] = self.tape.entries
        entries.append(turn.crossing)

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
