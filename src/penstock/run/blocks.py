"""Blocks made ready to run: the single-instance function of a graph block, its batched form, its output sizes.

Forms are built when first launched and kept. A block whose sizes cannot stay symbolic is built once per combination of
sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from penstock.capture.replay import call
from penstock.ir.graph import Block, Home, Node, Wire
from penstock.ir.program import AsSequence, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.plan.schedule import Launch, Sized
from penstock.run.batched import BatchedBlock, BlockInput, build_batched

#: Concrete forms kept per block that has no symbolic one.
MOST_FORMS = 256


class RunnableBlock:
    """One block of a graph."""

    def __init__(self, node: Node) -> None:
        assert isinstance(node.operation, Block)
        self.node = node
        self.block: Block = node.operation
        self.name = self.block.name
        self.lengths: dict[tuple[int, ...], tuple[int | None, ...]] = {}
        self.forms: dict[tuple[int, ...], BatchedBlock] = {}

    def function(self, *arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """What the block computes for one instance."""
        values: dict[Value, torch.Tensor | int] = dict(zip(self.block.parameters, arguments))
        for node in self.block.nodes:
            operands = [values[value] for value in node.inputs]
            if isinstance(node.operation, AsSequence):
                outputs: Sequence[torch.Tensor | int] = operands
            else:
                assert isinstance(node.operation, TorchCall)
                outputs = call(node.operation, operands)
            values.update(zip(node.outputs, outputs))
        return tuple(values[value] for value in self.block.results)  # type: ignore[misc]

    @cached_property
    def inputs(self) -> list[BlockInput]:
        """How the batched form takes the block's parameters."""
        return [self._input(position, wire) for position, wire in enumerate(self.node.inputs)]

    def _input(self, position: int, wire: Wire) -> BlockInput:
        kind = wire.type
        assert isinstance(kind, TensorType)
        if position in self.block.sizes:
            symbol = self.block.sizes[position] or f"size{position}"
            return BlockInput("size", "int64", (), symbol, kind.device)
        if wire.home is Home.UNIFORM:
            return BlockInput("uniform", kind.dtype, kind.shape, None, kind.device)
        shape = kind.shape
        if self.block.is_flat and kind.is_sequence:
            shape = (1, *shape[1:])
        return BlockInput("row", kind.dtype, shape, None, kind.device)

    def dynamic_sizes(self, launch: Launch) -> tuple[int, ...]:
        """The sizes of a launch's dynamic operands."""
        sizes = []
        for operand in launch.operands:
            if isinstance(operand, Sized):
                sizes.append(operand.size)
            elif getattr(operand, "length", None) is not None:
                sizes.append(operand.length)  # type: ignore[union-attr]
        return tuple(sizes)

    def form(self, sizes: tuple[int, ...]) -> BatchedBlock:
        """The batched form for a launch of these sizes."""
        if () in self.forms:
            return self.forms[()]
        if sizes in self.forms:
            return self.forms[sizes]
        try:
            self.forms[()] = made = build_batched(self.function, self.inputs, name=self.name)
        except Exception:
            if not sizes:
                raise
            made = build_batched(self._at(sizes), self._inputs_at(sizes), name=self.name)
            if len(self.forms) >= MOST_FORMS:
                self.forms.pop(next(iter(self.forms)))
            self.forms[sizes] = made
        return made

    def _dynamic(self) -> list[int]:
        return [
            position
            for position, spec in enumerate(self.inputs)
            if spec.kind == "size" or any(isinstance(size, str) for size in spec.shape)
        ]

    def _inputs_at(self, sizes: tuple[int, ...]) -> list[BlockInput]:
        """The inputs with concrete sizes; sizes are passed but not looked at."""
        concrete = list(self.inputs)
        for position, size in zip(self._dynamic(), sizes, strict=True):
            spec = self.inputs[position]
            if spec.kind == "row":
                shape = (size, *spec.shape[1:])
                concrete[position] = BlockInput("row", spec.dtype, shape, None, spec.device)
        return concrete

    def _at(self, sizes: tuple[int, ...]) -> Callable[..., tuple[torch.Tensor, ...]]:
        fixed = dict(zip(self._dynamic(), sizes, strict=True))

        def function(*arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
            taken = [
                fixed[position] if self.inputs[position].kind == "size" else argument
                for position, argument in enumerate(arguments)
            ]
            return self.function(*taken)

        return function

    def output_lengths(self, sizes: tuple[int, ...]) -> tuple[int | None, ...]:
        """The leading size of each result that is a sequence."""
        if sizes not in self.lengths:
            self.lengths[sizes] = self._infer_lengths(sizes)
        return self.lengths[sizes]

    def _infer_lengths(self, sizes: tuple[int, ...]) -> tuple[int | None, ...]:
        dynamic = dict(zip(self._dynamic(), sizes, strict=True))
        with FakeTensorMode(), torch.no_grad():
            arguments: list[torch.Tensor | int] = []
            for position, spec in enumerate(self._inputs_at(sizes)):
                if spec.kind == "size":
                    arguments.append(dynamic[position])
                else:
                    shape: tuple[int, ...] = spec.shape  # type: ignore[assignment]
                    arguments.append(
                        torch.empty(shape, dtype=spec.torch_dtype, device=spec.device)
                    )
            outputs = self.function(*arguments)
        return tuple(
            output.shape[0] if wire.type.is_sequence else None  # type: ignore[union-attr]
            for wire, output in zip(self.node.outputs, outputs, strict=True)
        )
