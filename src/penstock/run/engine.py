"""Runs a program for many instances: compiles it once, then plans and launches at every call.

The planner and the runner take turns: the planner is asked for a window of instructions, the runner carries them out,
and sends back what the planner asked to read. Nothing of a call outlives it but its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.ir.graph import Graph, Uniform
from penstock.ir.program import Captured, Constant, Program, TorchCall
from penstock.ir.types import TensorType
from penstock.passes.pipeline import program_to_graph
from penstock.passes.rank import rank_nodes
from penstock.plan.limits import current_limits
from penstock.plan.link import link
from penstock.plan.machine import Machine
from penstock.plan.schedule import (
    Array,
    Chunk,
    Copy,
    Hosted,
    Instruction,
    Launch,
    Read,
    Schedule,
    Shared,
    Sized,
    Store,
)
from penstock.run.arenas import Arena
from penstock.run.blocks import RunnableBlock
from penstock.run.inputs import load_inputs
from penstock.run.outputs import OutputColumn, collect_outputs
from penstock.capture.replay import call

#: Instructions planned ahead of the runner, at most.
WINDOW = 512

Columns = Sequence[Sequence[torch.Tensor] | torch.Tensor]


class Executable:
    """A program compiled for the machine."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.default_dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self.graph: Graph = program_to_graph(program, self.default_dtype)
        self.linked = link(self.graph, rank_nodes(self.graph), self.default_dtype)
        self.blocks = [RunnableBlock(node) for node in self.linked.blocks]

    def shapes(self, block: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The planner's question about a block's output sizes."""
        return self.blocks[block].output_shapes(sizes)

    def run(
        self, columns: Columns, captures: Sequence[torch.Tensor], count: int
    ) -> list[OutputColumn]:
        """The outputs of the program for `count` instances."""
        with torch.no_grad():
            run = Run(self, captures, count)
            run.carry_out(columns)
            return collect_outputs(run.machine, run.arenas, self.linked.contexts[0].context)

    def schedule(
        self, columns: Columns, captures: Sequence[torch.Tensor], count: int
    ) -> Schedule:
        """What a call would launch; programs whose control depends on computed values are run for it."""
        with torch.no_grad():
            is_dry = not any(node.kind == "read" for node in self._nodes())
            run = Run(self, captures, count, is_dry=is_dry, keeps_schedule=True)
            run.carry_out(columns)
            return run.schedule

    def _nodes(self):  # type: ignore[no-untyped-def]
        return (node for context in self.linked.contexts for node in context.nodes)


def compile_program(program: Program) -> Executable:
    """Compile a program for the machine."""
    return Executable(program)


class Run:
    """One call: the machine, the arenas and the uniform values."""

    def __init__(
        self,
        executable: Executable,
        captures: Sequence[torch.Tensor],
        count: int,
        *,
        is_dry: bool = False,
        keeps_schedule: bool = False,
    ) -> None:
        self.executable = executable
        self.captures = captures
        #: Whether to plan without launching.
        self.is_dry = is_dry
        #: Whether the instructions are kept once carried out; a long loop would fill the memory with them.
        self.keeps_schedule = keeps_schedule
        seed = int(torch.randint(2**63 - 1, ()).item()) if executable.graph.has_random else 0
        self.machine = Machine(executable.linked, current_limits(), executable, count, seed)
        self.arenas: list[Arena] = []
        self.uniform_nodes = {u.wire.number: u for u in executable.graph.uniforms}
        self.uniforms: dict[int, torch.Tensor] = {}
        self.schedule = Schedule(blocks=tuple(block.name for block in executable.blocks))

    def carry_out(self, columns: Columns) -> None:
        """Plan and run until nothing is left."""
        load_inputs(self, columns, self.machine.count)
        steps = self.machine.run()
        answer: list[Array] | None = None
        is_over = False
        while not is_over:
            window: list[Instruction] = []
            try:
                while len(window) < WINDOW:
                    item = steps.send(answer)
                    answer = None
                    window.append(item)
                    if isinstance(item, Read):
                        break
            except StopIteration:
                is_over = True
            answer = self._carry_out(window)
        self.schedule.arenas = [space.kind for space in self.machine.spaces]
        self.schedule.firings = self.machine.firings

    def arena(self, number: int) -> Arena:
        """The arena of that number."""
        while number >= len(self.arenas):
            self.arenas.append(Arena(self.machine.spaces[len(self.arenas)].kind))
        return self.arenas[number]

    def _carry_out(self, window: list[Instruction]) -> list[Array] | None:
        if self.keeps_schedule:
            self.schedule.instructions.extend(window)
        if self.is_dry:
            return None
        self._grow([item for item in window if isinstance(item, Chunk)])
        answer = None
        for item in window:
            if isinstance(item, Launch):
                self._launch(item)
            elif isinstance(item, Store):
                arena = self.arena(item.target.arena)
                arena.write(item.target, torch.from_numpy(item.values).to(arena.device))
            elif isinstance(item, Copy):
                arena = self.arena(item.target.arena)
                arena.write(item.target, arena.gather(item.source))
            elif isinstance(item, Read):
                gathered = [self.arena(s.arena).gather(s) for s in item.sources]
                answer = [values.cpu().numpy() for values in gathered]
        return answer

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
        arguments = [self._argument(launch, block, k) for k in range(len(launch.operands))]
        form = block.form(block.dynamic_sizes(arguments))
        outputs = form(launch.rows, *arguments)
        for target, values in zip(launch.targets, outputs, strict=True):
            arena = self.arena(target.arena)
            if target.length is not None or block.block.is_flat:
                values = values.reshape(-1, *arena.kind.shape)
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
            outputs = call(operation, [self.uniform(wire.number) for wire in uniform.inputs])
            for other in self.uniform_nodes.values():
                if other.node is uniform.node:
                    self.uniforms[other.wire.number] = outputs[other.output]


