"""A run of which this process carries out its own launches, and exchanges rows for the others.

Every rank goes through the same stages of one plan, whether it plans them or knows them. An
instruction belongs to the rank of the device whose arenas it writes to; a copy between ranks is a
message. Values that steer the planner are told to all ranks, so that all go on alike. Results are
on every rank in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.autodiff.taped_run import TapedRun
from penstock.distributed.agreement import agreed_call
from penstock.distributed.course import Course
from penstock.distributed.kept_plans import Known, PlacedPlan, Stage, plans_of
from penstock.distributed.results import spread_results
from penstock.distributed.transport import Transport
from penstock.distributed.turns import (
    Cross,
    Crossing,
    Hand,
    Own,
    Rows,
    Spread,
    Tell,
    Turn,
)
from penstock.plan.call_inputs import CallInputs
from penstock.plan.exchanges import GIVEN
from penstock.plan.limits import Limits, current_limits
from penstock.plan.machine import Steps
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
    slot_count,
)
from penstock.run.engine import Columns, Run
from penstock.run.executable import Executable
from penstock.run.fused.indices import Indices
from penstock.run.inputs import install_inputs, read_inputs
from penstock.run.kept_plans import WINDOW
from penstock.run.prepared import prepare_fetch, prepare_put

#: Turns of a stage that are looked at for messages to come.
FEW = 32


class Placing(Run):
    """A run that is one of several; comes before another kind of run."""

    planner: PlacedPlanner | Known
    transport: Transport
    #: Plans of runs that take turns in another manner are others.
    manner = b"in turn"
    shares_rows = False
    joins_shared = False
    #: The digest of the whole schedule, in the end.
    digest: bytes

    def place(self, transport: Transport) -> None:
        """Say who the other ranks are, before the run."""
        self.transport = transport
        self.ranks = ranks_of_devices(self.executable)

    def _carry_out_all(self, columns: Columns) -> None:
        limits = current_limits().with_depth(self.executable.max_depth)
        inputs = read_inputs(self, columns)
        with self.transport.lock:
            self.call = self.transport.begin_call()
            with agreed_call(self, columns, inputs, limits):
                self._carry_out_alike(columns, inputs, limits)

    def _carry_out_alike(self, columns: Columns, inputs: CallInputs, limits: Limits) -> None:
        # A process may have one rank in this group and another in the next.
        key = (
            inputs.digest(limits, WINDOW) + self.transport.rank.to_bytes(4, "little") + self.manner
        )
        plans = plans_of(self.executable)
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
            try:
                self._stamp(stage.digest)
                self._grow(stage.growth)
                if stage.turns is None:
                    answer = self._take_first(stage, course.window)
                else:
                    self._expect(stage.turns)
                    answer = self._take(stage.turns)
            except BaseException as error:
                self.transport.note_failure(error, f"call {self.call}")
                raise
            if stage.outcome is not None:
                self.outcome, self.digest = stage.outcome, stage.digest

    def _stamp(self, digest: bytes) -> None:
        """Messages from here on belong to this part of the schedule."""
        self.transport.digest = digest

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
            spread = (self.spread_of(source, "values that steer") for source in item.sources)
            return Tell(tuple(spread))
        if isinstance(item, Launch):
            return self._launch_of(item, indices)
        if isinstance(item, Copy) and self.device(item.source) != self.device(item.target):
            exchange = planner.exchanges.popleft()
            return self._copy_of(item, window[position:], is_given=exchange.after == GIVEN)
        return Own(self.device(item.target), item) if self.is_mine(item.target.arena) else None

    def _launch_of(self, item: Launch, indices: Indices) -> Own | None:
        planner = self.planner
        assert isinstance(planner, PlacedPlanner)
        device = planner.blocks[item.block]
        if self.ranks[device] != self.transport.rank:
            planner.launched.popleft()
            return None
        with torch.inference_mode(False):  # it may serve runs that are differentiated
            return Own(device, item, self._prepare(item, indices))

    def _copy_of(self, item: Copy, coming: Sequence[Instruction], *, is_given: bool) -> Turn | None:
        """A copy between devices; inputs are on every rank, and need not travel."""
        source, target = self.device(item.source), self.device(item.target)
        ranks = self.ranks[source], self.ranks[target]
        if not is_given and ranks[0] != ranks[1]:
            arena = self.arena(item.target.arena)
            shape = (slot_count(item.source), *arena.kind.shape)
            rows = Rows(shape, arena.dtype, arena.device, self._purpose(coming))
            return Cross(Crossing(*ranks, item), rows)
        return Own(target, item) if ranks[1] == self.transport.rank else None

    def _purpose(self, coming: Sequence[Instruction]) -> str:
        """What rows travel for, by the instructions that come next."""
        reader = next((item for item in coming if isinstance(item, Launch | Read)), None)
        if isinstance(reader, Launch):
            return f"rows for block {self.blocks[reader.block].name}"
        return "rows to be read back" if reader is not None else "rows for what comes next"

    def _spread_results(self) -> None:
        spread_results(self)

    def spread_of(self, slots: Span | Picks, what: str) -> Spread:
        """Values of slots, which one rank has, for every rank."""
        arena = self.arena(slots.arena)
        rows = Rows((slot_count(slots), *arena.kind.shape), arena.dtype, arena.device, what)
        return Spread(self.ranks[self.device(slots)], slots, rows)

    def _expect(self, turns: Sequence[Turn]) -> None:
        """Begin to receive what comes to this rank in a stage before it sends anything, in front of
        the launches that precede it.
        """
        transport = self.transport
        for turn in turns[:FEW]:
            if isinstance(turn, Cross):
                crossing = turn.crossing
                if crossing.source == transport.rank:
                    return
                if crossing.target != transport.rank:
                    continue
                if not transport.expect(turn.rows, crossing.source, is_told=False):
                    return
            elif isinstance(turn, Tell):
                for part in turn.parts:
                    if part.source == transport.rank:
                        return
                    if not transport.expect(part.rows, part.source, is_told=True):
                        return

    def _take(self, turns: Sequence[Turn]) -> list[Array] | None:
        """Take turns; what was read, if the last one reads."""
        answer = None
        for turn in turns:
            if isinstance(turn, Own):
                self.step_of(turn)
            elif isinstance(turn, Cross):
                self._cross(turn)
            elif isinstance(turn, Tell):
                answer = [self._tell(part) for part in turn.parts]
        return answer

    def _cross(self, turn: Cross) -> None:
        crossing, transport = turn.crossing, self.transport
        if crossing.source == transport.rank:
            transport.send(
                self.fetched(turn, crossing.copy.source), crossing.target, turn.rows.what
            )
        elif crossing.target == transport.rank:
            self.received(turn, transport.receive(turn.rows, crossing.source))
        else:
            transport.skip()

    def _tell(self, part: Spread) -> Array:
        """Values that steer, on every rank."""
        mine = self.fetched(part, part.slots) if part.source == self.transport.rank else None
        return self.transport.tell(mine, part.rows, part.source)

    def step_of(self, turn: Own) -> None:
        """Carry out an instruction of this rank."""
        if turn.step is None:
            with torch.inference_mode(False):
                turn.step = self._prepare(turn.item, Indices())
        self._step(turn.step)

    def fetched(self, turn: Cross | Spread | Hand, source: Span | Picks) -> torch.Tensor:
        """The rows that leave this rank, or a device of it."""
        if turn.fetch is None:
            with torch.inference_mode(False):
                turn.fetch = prepare_fetch(self, source)
        return turn.fetch(self)

    def received(self, turn: Cross, rows: torch.Tensor) -> None:
        """Put rows of another rank to their slots."""
        if turn.put is None:
            with torch.inference_mode(False):
                turn.put = prepare_put(self, turn.crossing.copy.target)
        turn.put(self, rows)

    # ---- arenas ----------------------------------------------------------------------------------

    def device(self, slots: Span | Picks) -> int:
        """The device whose arena slots are in."""
        return slots.arena % len(self.ranks)

    def is_mine(self, arena: int) -> bool:
        """Whether an arena belongs to a device of this rank."""
        return self.ranks[arena % len(self.ranks)] == self.transport.rank


class PlacedRun(Placing, Run):
    """A run of a program in several processes."""


class PlacedTapedRun(Placing, TapedRun):
    """The same, which leaves a tape: crossings are entries of it on every rank."""

    def _cross(self, turn: Cross) -> None:
        super()._cross(turn)
        entries: list[Any] = self.tape.entries
        entries.append(turn.crossing)


def ranks_of_devices(executable: Executable) -> list[int]:
    """The rank of each device that a program runs on."""
    assert executable.placement is not None
    return [device.rank or 0 for device in executable.placement.devices]
