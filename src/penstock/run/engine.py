"""Runs a program for many instances: compiles it once, then plans and launches at every call.

The machine and the runner take turns: the machine is asked for a window of instructions, the runner
carries them out, and sends back what the machine asked to read. Nothing of a call outlives it but
its outputs, and its plan where the inputs alone decide it: a call with the same control inputs runs
that again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, TypeAlias

import torch

from penstock.calls.autocast import OFF, autocast_as, current_autocast
from penstock.calls.replay import call
from penstock.ir.graph import Block, Graph, Node, Uniform
from penstock.ir.program import Captured, Constant, Program, TorchCall
from penstock.ir.types import TensorType
from penstock.passes.rank import rank_nodes
from penstock.plan.call_inputs import Adopted, CallInputs
from penstock.plan.limits import DEPTH, Limits, current_limits
from penstock.plan.link import link
from penstock.plan.linked import LinkedNode
from penstock.plan.machine import Steps
from penstock.plan.outcome import Outcome
from penstock.plan.padding import Padding
from penstock.plan.placed import PlacedPlanner, find_placement, new_placed_planner
from penstock.plan.planners import Planner, new_planner, note_planned
from penstock.plan.schedule import (
    Array,
    Instruction,
    Integers,
    Read,
    Schedule,
)
from penstock.run.blocks import RunnableBlock
from penstock.run.collector import collector_waits
from penstock.run.faults import Numbers, note_uniform, user_errors
from penstock.run.graphs import CapturedPlan, Graphs
from penstock.run.inputs import install_inputs, read_inputs
from penstock.run.kept_plans import WINDOW, Keeping, KeptPlan, can_keep_plans, new_plans
from penstock.run.native.block import RowLoopBlock
from penstock.run.native.choice import is_closed_loop, make_graph
from penstock.run.outputs import OutputColumn, collect_outputs
from penstock.run.padding.block import PaddedBlock
from penstock.run.queued import OnQueues
from penstock.run.recording import CallRecorder, recorded_call
from penstock.run.runner import Runner
from penstock.run.seeds import Seed
from penstock.run.shipped import (
    Contents,
    ShippedPlan,
    ShippedPlanner,
    find_shipped,
    plan_ahead,
)
from penstock.run.templates.choice import Templates
from penstock.run.templates.template import Poured

Columns = Sequence[Sequence[torch.Tensor] | torch.Tensor]

#: What may plan a call.
AnyPlanner: TypeAlias = "Planner | PlacedPlanner | ShippedPlanner"


class Executable:
    """A program compiled for the machine."""

    def __init__(self, program: Program, max_depth: int = DEPTH) -> None:
        self.program = program
        #: How many calls may be inside each other, where the limits do not say it.
        self.max_depth = max_depth
        #: The state of autocast around every call.
        self.autocast = current_autocast()
        self.default_dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self.graph: Graph = make_graph(program, self.default_dtype, self.autocast)
        self.linked = link(self.graph, rank_nodes(self.graph), self.default_dtype)
        self.blocks = list(map(self._block, self.linked.blocks))
        #: The padded forms of blocks that mix along dynamic dimensions, by the block's number;
        #: they come behind the others.
        self.padded = self._add_padded()
        #: Where blocks run; None where one device of this process runs them all.
        self.placement = find_placement([block.block for block in self.blocks])
        self.block_names = tuple(block.name for block in self.blocks)
        self.uniform_nodes = {u.wire.number: u for u in self.graph.uniforms}
        self.keeps_plans = self.placement is None and can_keep_plans(self.linked)
        #: Plans of earlier calls, by their control inputs, and those that are CUDA graphs.
        self.plans = new_plans()
        self.graphs = Graphs()
        #: What fresh plans are poured into, as CUDA graphs.
        self.templates = Templates(self._devices())
        #: Wires through which gradients flow, by the inputs and captures that ask for them.
        self.differentiable: dict[object, Any] = {}
        #: What calls have saved for backward passes, by these wires; made and looked up by
        #: `penstock.autodiff`.
        self.saved: dict[object, Any] = {}

    def _add_padded(self) -> dict[int, PaddedBlock]:
        mixing = [k for k, block in enumerate(self.blocks) if block.is_mixing]
        first = len(self.blocks)
        padded = {k: PaddedBlock(self.blocks[k], first + i) for i, k in enumerate(mixing)}
        self.blocks += padded.values()
        return padded

    def padding(self, block: int, sizes: Mapping[int, Integers]) -> Padding | None:
        """The planner's question about a block's padded form."""
        return self.padded[block].padding(sizes) if block in self.padded else None

    def _devices(self) -> set[str]:
        """Where values are made."""
        kinds = [wire.type for block in self.blocks for wire in block.node.outputs]
        return {kind.device for kind in kinds if isinstance(kind, TensorType)}

    def _block(self, node: Node) -> RunnableBlock:
        assert isinstance(node.operation, Block)
        if is_closed_loop(node.operation):
            return RowLoopBlock(node, self.autocast, self.default_dtype)
        return RunnableBlock(node, self.autocast)

    def new_planner(self, limits: Limits, count: int, seed: int, numbers: Numbers) -> AnyPlanner:
        """What plans one call."""
        if self.placement is None:
            return new_planner(self.linked, limits, self, count, seed, numbers)
        return new_placed_planner(self.placement, self.linked, limits, self, count, seed, numbers)

    def shapes(self, block: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The planner's question about a block's output sizes."""
        return self.blocks[block].output_shapes(sizes)

    def run(
        self,
        columns: Columns,
        captures: Sequence[torch.Tensor],
        count: int,
        numbers: Numbers = None,
        seed: Seed | None = None,
    ) -> list[OutputColumn]:
        """The outputs for `count` instances; errors and random keys go by their `numbers`."""
        with torch.no_grad(), user_errors(numbers), self.recorded(count) as recorder:
            run = self.run_kind(self, captures, count, numbers, seed, recorder=recorder)
            run.carry_out(columns)
            return collect_outputs(run.outcome, run.arena)

    @property
    def run_kind(self) -> type[Run]:
        """What carries out a call that leaves no tape."""
        return Run if self.placement is None else QueuedRun

    def recorded(self, count: int) -> AbstractContextManager[CallRecorder | None]:
        """A call for `count` instances, recorded if a profile is active."""
        return recorded_call(self.graph.contexts[0].name, count, self.graph, self.program)

    def schedule(
        self,
        columns: Columns,
        captures: Sequence[torch.Tensor],
        count: int,
        numbers: Numbers = None,
    ) -> Schedule:
        """What a call would launch; programs whose control depends on computed values are run for
        it.
        """
        with torch.no_grad(), user_errors(numbers):
            is_dry = not any(node.kind == "read" for node in self._nodes())
            seed = Seed(advances=False)
            kind = self.run_kind
            run = kind(self, captures, count, numbers, seed, is_dry=is_dry, keeps_schedule=True)
            run.carry_out(columns)
            return run.schedule

    def plan_ahead(
        self,
        columns: Columns,
        captures: Sequence[torch.Tensor],
        count: int,
        numbers: Numbers = None,
    ) -> ShippedPlan | None:
        """The plan of a call, to be run in another process; None where there is none beforehand."""
        run = Run(self, captures, count, numbers, Seed(advances=False), is_dry=True)
        with user_errors(numbers):
            return plan_ahead(run, columns)

    def _nodes(self) -> Iterator[LinkedNode]:
        return (node for context in self.linked.contexts for node in context.nodes)


def compile_program(program: Program, max_depth: int = DEPTH) -> Executable:
    """Compile a program for the machine."""
    return Executable(program, max_depth)


class Run(Runner):
    """One call of a program: its plan, made or found, and its uniform values."""

    #: What the plan leaves behind, once it has run.
    outcome: Outcome
    #: Instructions that are planned and then carried out together, at most.
    window = WINDOW
    #: Whether its launches may become a CUDA graph.
    may_be_captured = True
    #: Rows hold what they read until they have fired, and results get their slots before.
    keeps_apart = True

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
        #: Collects what is run, if it may serve later calls.
        self.keeping: Keeping | None = None
        #: The plan, where it is kept: of this call or of an earlier one.
        self.kept: KeptPlan | None = None
        #: The CUDA graph that was run, if one was.
        self.captured: CapturedPlan | None = None
        #: The plan in a template, if it was run in one.
        self.poured: Poured | None = None
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
            if found is not None:
                if self.recorder is not None:
                    self.recorder.found_plan(perf_counter() - began, found.outcome.firings)
                self._run_again(found, columns)
                return
            self.keeping = Keeping(self.executable.plans, key)
        self._plan_and_run(inputs, limits, columns)

    def _run_again(self, plan: KeptPlan, columns: Columns) -> None:
        """Run the plan of an earlier call on the data of this one."""
        self.planner, self.outcome = plan, plan.outcome
        self.kept = plan
        if self.may_be_captured and self.executable.graphs.run(self, plan, columns):
            return
        install_inputs(self, columns, plan.outcome.adopted)
        for window in plan.windows:
            self._carry_out_again(window)
        plan.mirrors.update(self.mirrors)

    def _plan_and_run(self, inputs: CallInputs, limits: Limits, columns: Columns) -> None:
        executable = self.executable
        seed = self.seed.number if executable.graph.has_random else 0
        made = None if self.keeping is None else self._find_made(self.keeping.key)
        machine = made or executable.new_planner(limits, self.count, seed, self.numbers)
        self.planner = self.machine = machine
        adopted = machine.take(inputs)
        steps = machine.run()
        window, is_over = self._plan(machine, steps, None)
        if not is_over or not self._pour(machine, window, adopted, columns):
            if not self.is_dry:
                install_inputs(self, columns, adopted)
            answer = self._carry_out(window)
            while not is_over:
                window, is_over = self._plan(machine, steps, answer)
                answer = self._carry_out(window)
            self.outcome = machine.outcome(adopted)
        note_planned(machine)
        self.schedule.arenas = [extent.kind for extent in self.outcome.extents]
        self.schedule.firings = machine.firings
        if self.keeping is not None:
            self.kept, self.keeping = self.keeping.keep(self.outcome), None

    def _pour(
        self, machine: AnyPlanner, window: list[Instruction], adopted: Adopted, columns: Columns
    ) -> bool:
        """Run a whole plan in a template; False where it must be run the plain way."""
        templates, keeping = self.executable.templates, self.keeping
        if keeping is None or not self.may_be_captured or self.is_dry or not templates.device:
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
        if self.recorder is not None:
            self.recorder.planned(perf_counter() - began, machine.firings)
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
