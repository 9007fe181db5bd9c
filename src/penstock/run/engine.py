"""One call of a compiled program for many instances: it is planned, and launched, in turns.

The machine and the runner take turns: the machine is asked for a window of instructions, the runner
carries them out, and sends back what the machine asked to read. Nothing of a call outlives it but
its outputs, and its plan where the inputs alone decide it: a call with the same control inputs runs
that again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from penstock.calls.autocast import OFF, autocast_as
from penstock.calls.replay import call
from penstock.ir.graph import Uniform
from penstock.ir.program import Captured, Constant, TorchCall
from penstock.ir.types import TensorType
from penstock.plan.call_inputs import Adopted, CallInputs
from penstock.plan.limits import Limits, current_limits
from penstock.plan.machine import Machine, Steps
from penstock.plan.outcome import Outcome
from penstock.plan.placed import PlacedPlanner
from penstock.plan.planners import Planner, note_planned
from penstock.plan.schedule import Array, Chunk, Instruction, Read, Schedule
from penstock.run.collector import collector_waits
from penstock.run.faults import Numbers, note_uniform
from penstock.run.fused.setting import Fusion
from penstock.run.graphs import CapturedPlan
from penstock.run.inputs import install_inputs, read_inputs
from penstock.run.kept_plans import WINDOW, Keeping, KeptPlan
from penstock.run.prepared import PreparedWindow
from penstock.run.queued import OnQueues
from penstock.run.recording import CallRecorder
from penstock.run.runner import Runner
from penstock.run.seeds import Seed
from penstock.run.shipped import Contents, ShippedPlanner, find_shipped
from penstock.run.straight import Straightened
from penstock.run.strips.batch import Batch
from penstock.run.strips.running import Stripped
from penstock.run.templates.template import Poured

if TYPE_CHECKING:
    from penstock.run.executable import Executable

Columns = Sequence[Sequence[torch.Tensor] | torch.Tensor]

#: What may plan a call.
AnyPlanner: TypeAlias = "Planner | PlacedPlanner | ShippedPlanner"


class Run(Runner):
    """One call of a program: its plan, made or found, and its uniform values."""

    #: What the plan leaves behind, once it has run.
    outcome: Outcome
    #: Instructions that are planned and then carried out together, at most.
    window = WINDOW
    #: Whether its launches may become a CUDA graph.
    may_be_captured = True
    #: Whether compiled launches of a kept plan may be called in a row.
    goes_straight = True
    #: Rows hold what they read until they have fired, and results get their slots before.
    keeps_apart = True
    shares_rows = True
    #: Whether values that all instances have lie in one chunk with the first computed ones. A plan
    #: is shared by runs with a memory policy and without, which do alike.
    joins_shared = True

    def __init__(
        self,
        executable: Executable,
        captures: Sequence[torch.Tensor],
        count: int,
        numbers: Numbers = None,
        seed: Seed | None = None,
        *,
        is_dry: bool = False,
        keeps_schedule: bool = False,
        recorder: CallRecorder | None = None,
    ) -> None:
        super().__init__(executable.blocks, numbers, recorder)
        self.executable = executable
        self.captures = captures
        self.count = count
        #: Whether to plan without launching.
        self.is_dry = is_dry
        #: Whether to plan anew, and keep the instructions once carried out; a long loop would fill
        #: the memory with them.
        self.keeps_schedule = keeps_schedule
        self.seed = seed or Seed()
        #: None where the plan of an earlier call is run again.
        self.machine: AnyPlanner | None = None
        #: What planning has taken.
        self.seconds = 0.0
        #: Collects what is run, if it may serve later calls.
        self.keeping: Keeping | None = None
        #: The plan, where it is kept: of this call or of an earlier one.
        self.kept: KeptPlan | None = None
        #: The CUDA graph that was run, if one was.
        self.captured: CapturedPlan | None = None
        #: The plan in a template, if it was run in one.
        self.poured: Poured | None = None
        #: For each arena how many slots hold such values, as long as nothing was carried out.
        self.shared_slots: dict[int, int] = {}
        self.uniform_nodes = executable.uniform_nodes
        self.schedule = Schedule(blocks=executable.block_names)

    @property
    def purpose(self) -> Hashable:
        """What a captured plan may serve for."""
        return "inference"

    def traces(self) -> Any:
        """What a run leaves besides its values."""
        return None

    def no_traces(self) -> Any:
        """What a run starts with."""
        return None

    def take_traces(self, traces: Any) -> None:
        """Have left what another run has."""

    def carry_out(self, columns: Columns) -> None:
        """Plan and run until nothing is left; batched code has casts of autocast written out."""
        try:
            with autocast_as(OFF):
                self._carry_out_all(columns)
            self.executable.windows.firings += self.outcome.firings
            if self.recorder is not None:
                self.recorder.ended(self)
        finally:
            if self.machine is not None and self.machine.has_drawn:
                self.seed.take()

    def _carry_out_all(self, columns: Columns) -> None:
        limits = current_limits().with_depth(self.executable.max_depth)
        began = perf_counter()
        inputs = read_inputs(self, columns)
        if self.executable.keeps_plans and not self.keeps_schedule:
            key = inputs.digest(limits, WINDOW)
            found = self.executable.plans.find(key)
            if found is not None and not self._is_better_anew(found):
                if self.recorder is not None:
                    self.recorder.found_plan(perf_counter() - began, found.outcome.firings)
                self._run_again(found, columns)
                return
            self.keeping = Keeping(self.executable.plans, key)
        self._plan_and_run(inputs, limits, columns)

    def _is_better_anew(self, plan: KeptPlan) -> bool:
        is_looked_at = self.recorder is not None or not self.goes_straight
        strips, linked = self.executable.strips, self.executable.linked
        return not is_looked_at and strips.would_do_better(plan, linked)

    def _run_again(self, plan: KeptPlan, columns: Columns) -> None:
        """Run the plan of an earlier call on the data of this one."""
        self.planner, self.outcome = plan, plan.outcome
        self.kept = plan
        may_be_captured = self.may_be_captured and self.executable.may_be_captured
        if may_be_captured and self.executable.graphs.run(self, plan, columns):
            return
        install_inputs(self, columns, plan.outcome.adopted)
        for window in plan.windows:
            self._carry_out_again(window)
        plan.mirrors.update(self.mirrors)

    def _carry_out_again(self, window: PreparedWindow) -> None:
        if not self.goes_straight or self.recorder is not None or Fusion.mode == "never":
            super()._carry_out_again(window)
            return
        if self.executable.strips.carry_out_again(self, window):
            return
        self._grow(window.growth)
        known = window.straight.get(self.purpose)
        if known is None:
            known = window.straight[self.purpose] = Straightened()
        straight = known.find(self, window.steps)
        if straight is None or not straight.run(self):
            self._run_steps(window.steps)
        self.executable.strips.learn(self, window)

    def _plan_and_run(self, inputs: CallInputs, limits: Limits, columns: Columns) -> None:
        executable = self.executable
        seed = self.seed.number if executable.graph.has_random else 0
        made = None if self.keeping is None else self._find_made(self.keeping.key)
        machine = made or executable.new_planner(limits, self.count, seed, self.numbers)
        self.planner = self.machine = machine
        adopted = machine.take(inputs)
        strips = self._strips(machine)
        if strips is not None:
            install_inputs(self, columns, adopted)
            strips.carry_out(self)
            self.outcome = machine.outcome(adopted)
        else:
            self._take_turns(machine, adopted, columns)
        note_planned(machine, self.seconds)
        self.schedule.arenas = [extent.kind for extent in self.outcome.extents]
        self.schedule.firings = machine.firings
        if self.keeping is not None:
            is_plain = isinstance(machine, Machine)
            self.kept = self.keeping.keep(self.outcome, is_plain=is_plain)
            self.keeping = None

    def _take_turns(self, machine: AnyPlanner, adopted: Adopted, columns: Columns) -> None:
        """Plan a window and carry it out, until all is done."""
        steps = machine.run()
        window, is_over = self._plan(machine, steps, None)
        if is_over and self._pour(machine, window, adopted, columns):
            return
        if not self.is_dry:
            install_inputs(self, columns, adopted)
        answer = self._carry_out(window)
        while not is_over:
            window, is_over = self._plan(machine, steps, answer)
            answer = self._carry_out(window)
        self.outcome = machine.outcome(adopted)

    def _strips(self, machine: AnyPlanner) -> Stripped | None:
        """What plans in records, and runs them by native code; None where somebody looks on."""
        is_looked_at = self.recorder is not None or self.is_dry or self.keeps_schedule
        if is_looked_at or not self.goes_straight:
            return None
        return self.executable.strips.find(machine, self.purpose)

    def note_strip(self, batch: Batch, begin: int, end: int) -> None:
        """Native code has run these launches."""

    def _pour(
        self, machine: AnyPlanner, window: list[Instruction], adopted: Adopted, columns: Columns
    ) -> bool:
        """Run a whole plan in a template; False where it must be run the plain way."""
        templates, keeping = self.executable.templates, self.keeping
        if keeping is None or not self.may_be_captured or self.is_dry or not templates.device:
            return False
        if not self.executable.may_be_captured:
            return False
        if templates.is_always(keeping.key):
            return False
        plan = Contents(window, list(machine.launched), machine.outcome(adopted))
        self.outcome, self.poured = plan.outcome, templates.run(self, plan, columns)
        if self.poured is None:
            return False
        templates.keep(keeping.key, plan)
        self.keeping = None
        return True

    def _find_made(self, key: bytes) -> ShippedPlanner | None:
        """A plan that was made elsewhere, or by an earlier call."""
        return find_shipped(self.executable, key) or self.executable.templates.known(key)

    def _plan(
        self, machine: AnyPlanner, steps: Steps, answer: list[Array] | None
    ) -> tuple[list[Instruction], bool]:
        """The next window of instructions, and whether it is the last."""
        began = perf_counter()
        window: list[Instruction] = []
        is_over = False
        try:
            with collector_waits():
                while len(window) < self.window:
                    item = steps.send(answer)
                    answer = None
                    window.append(item)
                    if isinstance(item, Read):
                        break
        except StopIteration:
            is_over = True
        seconds = perf_counter() - began
        self.seconds += seconds
        if self.recorder is not None:
            self.recorder.planned(seconds, machine.firings)
        return window, is_over

    def _carry_out(self, window: list[Instruction]) -> list[Array] | None:
        if self.keeps_schedule:
            self.schedule.instructions.extend(window)
        if self.is_dry:
            self.planner.launched.clear()
            return None
        prepared, answer = self._carry_out_prepared(window)
        if self.keeping is not None:
            self.keeping.add(prepared)
        return answer

    def _grow(self, chunks: Sequence[Chunk]) -> None:
        """Where nothing but shared values was given, the first chunk has them too. Ledgers look at
        chunks once launches have begun, so later ones do not.
        """
        super()._grow(chunks)
        self.shared_slots = {}

    def _grow_arena(self, chunk: Chunk) -> None:
        if self.joins_shared and self.shared_slots.get(chunk.arena) == chunk.start:
            self.arena(chunk.arena).grow_over_given(chunk.count)
        else:
            super()._grow_arena(chunk)

    def _find_uniform(self, number: int) -> None:
        self._compute_uniform(self.uniform_nodes[number])

    def _compute_uniform(self, uniform: Uniform) -> None:
        operation = uniform.node.operation
        kind = uniform.wire.type
        assert isinstance(kind, TensorType)
        if isinstance(operation, Captured):
            self.uniforms[uniform.wire.number] = self.captures[operation.index]
        elif isinstance(operation, Constant):
            dtype = getattr(torch, kind.dtype)
            self.uniforms[uniform.wire.number] = torch.tensor(
                operation.value, dtype=dtype, device=kind.device
            )
        else:
            assert isinstance(operation, TorchCall)
            operands = [self.uniform(wire.number) for wire in uniform.inputs]
            try:
                with autocast_as(self.executable.autocast):
                    outputs = call(operation, operands)
            except Exception as error:
                note_uniform(error, uniform.node.source)
                raise
            for other in self.uniform_nodes.values():
                if other.node is uniform.node:
                    self.uniforms[other.wire.number] = outputs[other.output]


class QueuedRun(OnQueues, Run):
    """One call of a program that several devices run."""
