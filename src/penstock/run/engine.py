"""Runs a program for many instances: compiles it once, then plans and launches at every call.

The planner and the runner take turns: the planner is asked for a window of instructions, the runner
carries them out, and sends back what the planner asked to read. Nothing of a call outlives it but
its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch

from penstock.calls.autocast import OFF, autocast_as, current_autocast
from penstock.calls.replay import call
from penstock.ir.graph import Graph, Uniform
from penstock.ir.program import Captured, Constant, Program, TorchCall
from penstock.ir.types import TensorType
from penstock.passes.pipeline import program_to_graph
from penstock.passes.rank import rank_nodes
from penstock.plan.limits import DEPTH, current_limits
from penstock.plan.link import link
from penstock.plan.linked import LinkedNode
from penstock.plan.machine import Machine, Steps
from penstock.plan.schedule import (
    Array,
    Chunk,
    Copy,
    Hosted,
    Instruction,
    Integers,
    Launch,
    Read,
    Schedule,
    Shared,
    Sized,
    Store,
    slot_count,
)
from penstock.run.arenas import Arena
from penstock.run.blocks import RunnableBlock
from penstock.run.faults import Numbers, note_launch, note_uniform, user_errors
from penstock.run.inputs import load_inputs
from penstock.run.nans import check_launch
from penstock.run.outputs import OutputColumn, collect_outputs
from penstock.run.recording import CallRecorder, recorded_call
from penstock.run.seeds import Seed

#: Instructions planned ahead of the runner, at most.
WINDOW = 512

Columns = Sequence[Sequence[torch.Tensor] | torch.Tensor]


class Executable:
    """A program compiled for the machine."""

    def __init__(self, program: Program, max_depth: int = DEPTH) -> None:
        self.program = program
        #: How many calls may be inside each other, where the limits do not say it.
        self.max_depth = max_depth
        #: The state of autocast around every call.
        self.autocast = current_autocast()
        self.default_dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self.graph: Graph = program_to_graph(program, self.default_dtype)
        self.linked = link(self.graph, rank_nodes(self.graph), self.default_dtype)
        self.blocks = [RunnableBlock(node, self.autocast) for node in self.linked.blocks]
        #: Wires through which gradients flow, by the inputs and captures that ask for them.
        self.differentiable: dict[object, Any] = {}

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
        with torch.no_grad(), user_errors(numbers), recorded_call(self.graph, count) as recorder:
            run = Run(self, captures, count, numbers, seed, recorder=recorder)
            run.carry_out(columns)
            return collect_outputs(run.machine, run.arenas, self.linked.contexts[0].context)

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
            run = Run(self, captures, count, numbers, seed, is_dry=is_dry, keeps_schedule=True)
            run.carry_out(columns)
            return run.schedule

    def _nodes(self) -> Iterator[LinkedNode]:
        return (node for context in self.linked.contexts for node in context.nodes)


def compile_program(program: Program, max_depth: int = DEPTH) -> Executable:
    """Compile a program for the machine."""
    return Executable(program, max_depth)


class Run:
    """One call: the machine, the arenas and the uniform values."""

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
        self.executable = executable
        self.captures = captures
        self.numbers = numbers
        #: Whether to plan without launching.
        self.is_dry = is_dry
        #: Whether the instructions are kept once carried out; a long loop would fill the memory
        #: with them.
        self.keeps_schedule = keeps_schedule
        #: None where no profile is active.
        self.recorder = recorder
        self.seed = seed or Seed()
        number = self.seed.number if executable.graph.has_random else 0
        limits = current_limits().with_depth(executable.max_depth)
        self.machine = Machine(executable.linked, limits, executable, count, number, numbers)
        self.arenas: list[Arena] = []
        self.uniform_nodes = {u.wire.number: u for u in executable.graph.uniforms}
        self.uniforms: dict[int, torch.Tensor] = {}
        self.schedule = Schedule(blocks=tuple(block.name for block in executable.blocks))

    def carry_out(self, columns: Columns) -> None:
        """Plan and run until nothing is left; batched code has casts of autocast written out."""
        try:
            with autocast_as(OFF):
                self._carry_out_all(columns)
        finally:
            if self.machine.has_drawn:
                self.seed.take()

    def _carry_out_all(self, columns: Columns) -> None:
        load_inputs(self, columns, self.machine.count)
        steps = self.machine.run()
        answer: list[Array] | None = None
        is_over = False
        while not is_over:
            window, is_over = self._plan(steps, answer)
            answer = self._carry_out(window)
        self.schedule.arenas = [space.kind for space in self.machine.spaces]
        self.schedule.firings = self.machine.firings

    def _plan(self, steps: Steps, answer: list[Array] | None) -> tuple[list[Instruction], bool]:
        """The next window of instructions, and whether it is the last."""
        began = perf_counter()
        window: list[Instruction] = []
        is_over = False
        try:
            while len(window) < WINDOW:
                item = steps.send(answer)
                answer = None
                window.append(item)
                if isinstance(item, Read):
                    break
        except StopIteration:
            is_over = True
        if self.recorder is not None:
            self.recorder.planned(perf_counter() - began, self.machine.firings)
        return window, is_over

    def arena(self, number: int) -> Arena:
        """The arena of that number."""
        while number >= len(self.arenas):
            self.arenas.append(Arena(self.machine.spaces[len(self.arenas)].kind))
        return self.arenas[number]

    def _carry_out(self, window: list[Instruction]) -> list[Array] | None:
        if self.keeps_schedule:
            self.schedule.instructions.extend(window)
        if self.is_dry:
            self.machine.launched.clear()
            return None
        self._grow([item for item in window if isinstance(item, Chunk)])
        answer = None
        for item in window:
            if isinstance(item, Launch):
                with self.recorder.launch(self, item) if self.recorder else nullcontext():
                    self._launch(item)
            elif isinstance(item, Store):
                self._store(item)
            elif isinstance(item, Copy):
                self._copy(item)
            elif isinstance(item, Read):
                with self.recorder.read(item) if self.recorder else nullcontext():
                    answer = self._read(item)
        return answer

    def _store(self, item: Store) -> None:
        arena = self.arena(item.target.arena)
        arena.write(item.target, torch.from_numpy(item.values).to(arena.device))

    def _copy(self, item: Copy) -> None:
        arena = self.arena(item.target.arena)
        values = self.arena(item.source.arena).gather(item.source)
        arena.write(item.target, values.reshape(slot_count(item.target), *arena.kind.shape))

    def _read(self, read: Read) -> list[Array]:
        gathered = [self.arena(source.arena).gather(source) for source in read.sources]
        return [values.cpu().numpy() for values in gathered]

    def _grow(self, chunks: list[Chunk]) -> None:
        """Chunks of one arena that follow each other become one tensor."""
        merged: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            parts = merged.setdefault(chunk.arena, [])
            if parts and parts[-1].start + parts[-1].count == chunk.start:
                last = parts.pop()
                chunk = last._replace(count=last.count + chunk.count)
            parts.append(chunk)
        for number, parts in merged.items():
            for part in parts:
                self.arena(number).grow(part.start, part.count)

    def _launch(self, launch: Launch) -> None:
        block = self.executable.blocks[launch.block]
        arguments = self.arguments(launch, block)
        with self.naming_launch(block, arguments) as instances:
            outputs = block.form(block.dynamic_sizes(arguments))(launch.rows, *arguments)
        self.check(launch, block, arguments, outputs, instances)
        self.store(launch, block, outputs)

    def check(
        self,
        launch: Launch,
        block: RunnableBlock,
        arguments: Sequence[torch.Tensor | int],
        outputs: Sequence[torch.Tensor],
        instances: Integers,
    ) -> None:
        """Look for NaN, if a profile asks for it."""
        if self.recorder is not None and self.recorder.checks_nan:
            check_launch(block, launch.rows, arguments, outputs, instances, self.numbers)

    def arguments(self, launch: Launch, block: RunnableBlock) -> list[torch.Tensor | int]:
        """The operands of a launch, gathered."""
        return [self._argument(launch, block, k) for k in range(len(launch.operands))]

    @contextmanager
    def naming_launch(
        self, block: RunnableBlock, arguments: Sequence[torch.Tensor | int]
    ) -> Iterator[Integers]:
        """Note on any error which block failed, and for which instance; gives the instance of each
        row.
        """
        instances = self.machine.launched.popleft()
        try:
            yield instances
        except Exception as error:
            note_launch(error, block, arguments, instances, self.numbers)
            raise

    def store(self, launch: Launch, block: RunnableBlock, outputs: Sequence[torch.Tensor]) -> None:
        """Write the results of a launch to their slots."""
        for target, values in zip(launch.targets, outputs, strict=True):
            arena = self.arena(target.arena)
            if target.length is not None or block.block.is_flat:
                values = values.reshape(slot_count(target), *arena.kind.shape)
                target = target._replace(length=None)
            arena.write(target, values)

    def _argument(self, launch: Launch, block: RunnableBlock, position: int) -> torch.Tensor | int:
        operand = launch.operands[position]
        if isinstance(operand, Shared):
            return self.uniform(operand.wire)
        if isinstance(operand, Sized):
            return operand.size
        spec = block.inputs[position]
        if isinstance(operand, Hosted):
            return torch.from_numpy(operand.values).to(spec.device)
        values = self.arena(operand.arena).gather(operand, launch.rows)
        if block.block.is_flat and len(spec.shape) and block.node.inputs[position].type.is_sequence:  # type: ignore[union-attr]
            values = values.unsqueeze(1)
        return values

    def uniform(self, number: int) -> torch.Tensor:
        """A uniform value, computed when first asked for."""
        if number not in self.uniforms:
            self._compute_uniform(self.uniform_nodes[number])
        return self.uniforms[number]

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
