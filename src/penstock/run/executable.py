"""A program compiled for the machine, once: its graph, linked, its blocks, and what calls share.

Calls change nothing here but what they find for later calls: plans, templates, batched forms. What
belongs to one call is a `Run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from penstock.calls.autocast import current_autocast
from penstock.ir.graph import Block, Graph, Node
from penstock.ir.program import Program
from penstock.ir.types import TensorType
from penstock.passes.rank import rank_nodes
from penstock.passes.row_loops import device_of_loop
from penstock.plan.limits import DEPTH, Limits
from penstock.plan.link import link
from penstock.plan.linked import LinkedNode
from penstock.plan.padding import Padding
from penstock.plan.placed import find_placement, new_placed_planner
from penstock.plan.planners import new_planner
from penstock.plan.schedule import Integers, Schedule
from penstock.run.blocks import RunnableBlock
from penstock.run.engine import AnyPlanner, Columns, QueuedRun, Run
from penstock.run.faults import Numbers, absent_device, user_errors
from penstock.run.graphs import Graphs
from penstock.run.kept_plans import KeptPlans, can_keep_plans
from penstock.run.native.block import RowLoopBlock
from penstock.run.native.choice import is_closed_loop, is_whole_loop, make_graph
from penstock.run.native.device_block import DeviceLoopBlock
from penstock.run.native.whole_block import WholeLoopBlock
from penstock.run.outputs import OutputColumn, collect_outputs
from penstock.run.padding.block import PaddedBlock
from penstock.run.recording import CallRecorder, recorded_call
from penstock.run.seeds import Seed
from penstock.run.shipped import ShippedPlan, plan_ahead
from penstock.run.strips.running import Strips
from penstock.run.templates.choice import Templates
from penstock.run.whole_loops import WholeLoops
from penstock.run.windows import Windows


class Executable:
    """A program compiled for the machine."""

    def __init__(
        self,
        program: Program,
        max_depth: int = DEPTH,
        *,
        opens_windows: bool = False,
        closes_whole_loops: bool = False,
    ) -> None:
        self.program = program
        #: How many calls may be inside each other, where the limits do not say it.
        self.max_depth = max_depth
        #: The state of autocast around every call.
        self.autocast = current_autocast()
        self.default_dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self.graph: Graph = make_graph(
            program,
            self.default_dtype,
            self.autocast,
            opens_windows=opens_windows,
            closes_whole_loops=closes_whole_loops,
        )
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
        self.plans = KeptPlans()
        self.graphs = Graphs()
        #: Whether launches may become CUDA graphs: a loop on a device is waited for.
        self.may_be_captured = not any(isinstance(b, DeviceLoopBlock) for b in self.blocks)
        devices = self._devices()
        #: Whether some block is on a GPU, and nobody has looked whether that GPU is there.
        self._may_be_absent = any(device.startswith("cuda") for device in devices)
        #: What fresh plans are poured into, as CUDA graphs.
        self.templates = Templates(devices)
        #: What runs fresh plans on a CPU by native code.
        self.strips = Strips(self.blocks, devices)
        #: The same program with windows before its counted loops.
        self.windows = Windows(self, devices, opens_windows)
        #: The same program with loops that devices run as a whole.
        self.whole_loops = WholeLoops(self, devices, closes_whole_loops)
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

    def refuse_absent_devices(self) -> None:
        """Raise where a block is placed on a device that this machine does not have."""
        if not self._may_be_absent:
            return
        count = torch.cuda.device_count()
        for node in (block.node for block in self.blocks):
            for kind in (wire.type for wire in node.outputs):
                if isinstance(kind, TensorType) and _gpu_number(kind.device) >= count:
                    raise absent_device(kind.device, count, node.source)
        self._may_be_absent = False

    def _block(self, node: Node) -> RunnableBlock:
        assert isinstance(node.operation, Block)
        if is_closed_loop(node.operation):
            kind = RowLoopBlock if device_of_loop(node.operation) == "cpu" else DeviceLoopBlock
            kind = WholeLoopBlock if is_whole_loop(node.operation) else kind
            return kind(node, self.autocast, self.default_dtype)
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
        form = self.whole_loops.chosen()
        if form is not None:
            return form.run(columns, captures, count, numbers, seed)
        with torch.no_grad(), user_errors(numbers), self.recorded(count) as recorder:
            run = self.run_kind(self, captures, count, numbers, seed, recorder=recorder)
            run.carry_out(columns)
            return run.with_room(lambda: collect_outputs(run.outcome, run.arena))

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


def _gpu_number(device: str) -> int:
    """The number of a GPU; less than any for other devices."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else -1
