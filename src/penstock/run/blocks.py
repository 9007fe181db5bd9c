"""Blocks made ready to run: the single-instance function of a graph block, its batched form, its
output sizes.

Forms are built when first launched and kept. A block whose sizes cannot stay symbolic is built once
per combination of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from sys import maxsize
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from penstock.calls.autocast import OFF, Autocast, autocast_as
from penstock.calls.replay import call
from penstock.calls.slices import is_cut
from penstock.ir.graph import Block, Home, Node, Wire
from penstock.ir.program import AsSequence, RowLoop, Source, TorchCall, Value
from penstock.ir.program import Node as ProgramNode
from penstock.ir.types import TensorType
from penstock.passes.row_types import device_of
from penstock.plan.schedule import Launch
from penstock.run.batched import BatchedBlock, BlockInput, build_batched
from penstock.run.batched.emit import BatchFunction
from penstock.run.batched.functorch_adapter import TRACING, quiet_fakes
from penstock.run.fused.heat import Heat
from penstock.run.fused.known import mark_of, was_compiled
from penstock.run.moves import moved, taken_on
from penstock.run.native.plain import PlainRows
from penstock.run.pieces import most_rows
from penstock.run.sharing import Sharing

#: Concrete forms kept per block that has no symbolic one.
MOST_FORMS = 256

Argument: TypeAlias = torch.Tensor | int


class Executed(NamedTuple):
    """A call of a block that was made, with what it took and what it gave."""

    node: ProgramNode
    operands: Sequence[Argument]
    outputs: Sequence[Argument]


class Failure(NamedTuple):
    """What a block does for one instance that fails: the user's line, and what torch raises."""

    source: Source | None
    error: Exception


class RunnableBlock:
    """One block of a graph."""

    #: Whether to warn of a form that is slow; recorded steps tell of it in explanations only.
    warns = True
    #: What keeps rows of different sizes from running together; empty where nothing does, or
    #: nobody has asked.
    obstacle = ""

    def __init__(self, node: Node, autocast: Autocast = OFF) -> None:
        assert isinstance(node.operation, Block)
        self.node = node
        self.block: Block = node.operation
        self.name = self.block.name
        #: The state of autocast that the block's calls run in; batched forms have its casts written
        #: out.
        self.autocast = autocast
        self.shapes: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
        self.forms: dict[tuple[int, ...], BatchedBlock] = {}
        #: Forms that save what gradients need, made and looked up by `penstock.autodiff`.
        self.training_forms: dict[object, Any] = {}
        #: Halves that are compiled, made and looked up by `penstock.run.fused`, and how near the
        #: others are to it.
        self.fused_forms: dict[object, Any] = {}
        self.heats: dict[str, Heat] = {}

    def function(self, *arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """What the block computes for one instance."""
        values = self.values(arguments)
        return tuple(values[value] for value in self.block.results)  # type: ignore[misc]

    def values(self, arguments: Sequence[torch.Tensor | int]) -> dict[Value, torch.Tensor | int]:
        """All values of the block for one instance, also those that nobody sees."""
        values: dict[Value, torch.Tensor | int] = dict(zip(self.block.parameters, arguments))
        with autocast_as(self.autocast):
            for node in self.block.nodes:
                _compute(node, values)
        return values

    def executed(self, arguments: Sequence[Argument]) -> tuple[list[Executed], list[Argument]]:
        """The calls that the block makes for one instance, and its results."""
        values = self.values(arguments)
        calls = [
            Executed(node, [values[x] for x in node.inputs], [values[x] for x in node.outputs])
            for node in self.block.nodes
        ]
        return calls, [values[value] for value in self.block.results]

    def failure(self, arguments: Sequence[torch.Tensor | int]) -> Failure | None:
        """Where the block fails for one instance, and how; None where it does not."""
        values: dict[Value, torch.Tensor | int] = dict(zip(self.block.parameters, arguments))
        for node in self.block.nodes:
            try:
                with autocast_as(self.autocast):
                    _compute(node, values)
            except Exception as error:
                return Failure(node.source, error)
        return None

    def run(self, rows: int, arguments: Sequence[torch.Tensor | int]) -> Sequence[torch.Tensor]:
        """The results for all rows of a launch: row arguments are [rows, ...], and so are they."""
        return self.form(self.dynamic_sizes(arguments))(rows, *arguments)

    def function_for(self, arguments: Sequence[torch.Tensor | int]) -> BatchFunction:
        """What to call, as function(rows, *arguments), for all arguments of these sizes."""
        return self.form(self.dynamic_sizes(arguments)).form_for(arguments)

    def plain_function(self) -> BatchFunction | None:
        """The batched function, if it is one for all sizes and runs no row by itself."""
        if not self.has_one_size:
            return None
        form = self.form(())
        return None if form.unbatched else form.form_for(())

    @property
    def has_one_size(self) -> bool:
        """Whether no parameter has a dynamic size."""
        return not self._dynamic

    @property
    def is_uniform(self) -> bool:
        """Whether all launches are alike but for their rows, which are values of instances."""
        return self.has_one_size and not self.block.is_flat

    def is_hot(self, half: str, rows: int = 0) -> bool:
        """Whether a launch of a half is to be run compiled, after one more of so many rows; never
        on the threads of devices, and not where checking the code would print.
        """
        if self.block.device is not None or self.sharing.prints:
            return False
        heat = self.heats.get(half)
        if heat is None:
            heat = self.heats[half] = Heat(self.inputs, partial(was_compiled, self.mark(half)))
        return heat.rise(rows)

    def mark(self, half: str) -> str:
        """What a half is known by to later processes."""
        return mark_of(f"{self.name}.{half}", self.inputs)

    def runs_on(self, kind: str) -> bool:
        """Whether somebody has placed the block on a device of a kind."""
        return self.block.device is not None and self.block.device.kind == kind

    @cached_property
    def moved(self) -> frozenset[int]:
        """Parameters with which nothing is done but to move them, by position."""
        return moved(self.block)

    @property
    def unbatched(self) -> tuple[str, ...]:
        """Operations on whose account rows run one by one, as far as is known."""
        return tuple(name for form in self.forms.values() for name in form.unbatched)

    def padding_share(self, launch: Launch, shapes: Sequence[tuple[int, ...]]) -> float | None:
        """How much of the sequences of a launch, whose operands have these shapes, is padding; None
        for a block that is not padded.
        """
        return None

    @cached_property
    def flat_inputs(self) -> tuple[bool, ...]:
        """Which parameters take elements of sequences as sequences of one."""
        if not self.block.is_flat:
            return (False,) * len(self.inputs)
        kinds = [wire.type for wire in self.node.inputs]
        return tuple(
            bool(spec.shape)
            and spec.kind == "row"
            and isinstance(kind, TensorType)
            and kind.is_sequence
            for spec, kind in zip(self.inputs, kinds, strict=True)
        )

    @property
    def is_mixing(self) -> bool:
        """Whether the block is launched for rows of one size, or padded."""
        return not self.block.is_flat and bool(self._dynamic)

    @cached_property
    def inputs(self) -> list[BlockInput]:
        """How the batched form takes the block's parameters."""
        return [self._input(position, wire) for position, wire in enumerate(self.node.inputs)]

    @cached_property
    def devices(self) -> list[torch.device | None]:
        """Where it takes them, and then None for each result: it is where its arena is."""
        return [
            *(torch.device(spec.device) for spec in self.inputs),
            *[None] * len(self.node.outputs),
        ]

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
        return BlockInput("row", kind.dtype, shape, None, self._device(position, kind))

    def _device(self, position: int, kind: TensorType) -> str:
        """Where the block takes a parameter."""
        return taken_on(self.block, position, kind)

    @cached_property
    def most_rows(self) -> int:
        """The rows that it runs at once, the plain way."""
        return most_rows(self.block, self.inputs) if self.has_one_size else maxsize

    @cached_property
    def sharing(self) -> Sharing:
        """What rows of its launches may share."""
        return Sharing(self.block, self.inputs, may_share=not self._dynamic)

    def dynamic_sizes(self, arguments: Sequence[torch.Tensor | int]) -> tuple[int, ...]:
        """The sizes of the dynamic dimensions of a launch's arguments."""
        sizes: list[int] = []
        for position in self._dynamic:
            argument = arguments[position]
            if isinstance(argument, int):
                sizes.append(argument)
            else:
                names = self.inputs[position].shape
                sizes += [n for n, name in zip(argument.shape[1:], names) if isinstance(name, str)]
        return tuple(sizes)

    def form(self, sizes: tuple[int, ...]) -> BatchedBlock:
        """The batched form for a launch of these sizes."""
        if () in self.forms:
            return self.forms[()]
        if sizes in self.forms:
            return self.forms[sizes]
        try:
            self.forms[()] = made = self._built(self.function, self.inputs)
        except Exception:
            if not sizes:
                raise
            made = self._built(self._at(sizes), self._inputs_at(sizes))
            if len(self.forms) >= MOST_FORMS:
                self.forms.pop(next(iter(self.forms)))
            self.forms[sizes] = made
        return made

    def _built(
        self, function: Callable[..., tuple[torch.Tensor, ...]], inputs: Sequence[BlockInput]
    ) -> BatchedBlock:
        general = not any(map(is_cut, self.block.nodes))
        return build_batched(function, inputs, name=self.name, general=general, warns=self.warns)

    @cached_property
    def _dynamic(self) -> list[int]:
        """The inputs with dynamic sizes."""
        return [
            position
            for position, spec in enumerate(self.inputs)
            if spec.kind == "size" or any(isinstance(size, str) for size in spec.shape)
        ]

    def _inputs_at(self, sizes: tuple[int, ...]) -> list[BlockInput]:
        """The inputs with concrete sizes; sizes are passed but not looked at."""
        remaining = iter(sizes)
        concrete = []
        for spec in self.inputs:
            if spec.kind == "size":
                next(remaining)
            shape = tuple(next(remaining) if isinstance(n, str) else n for n in spec.shape)
            concrete.append(BlockInput(spec.kind, spec.dtype, shape, spec.symbol, spec.device))
        return concrete

    def _fixed(self, sizes: tuple[int, ...]) -> dict[int, int]:
        """The Python ints among the parameters, by position."""
        remaining = iter(sizes)
        fixed = {}
        for position, spec in enumerate(self.inputs):
            if spec.kind == "size":
                fixed[position] = next(remaining)
            for _ in (name for name in spec.shape if isinstance(name, str)):
                next(remaining)
        return fixed

    def _at(self, sizes: tuple[int, ...]) -> Callable[..., tuple[torch.Tensor, ...]]:
        fixed = self._fixed(sizes)

        def function(*arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
            return self.function(*(fixed.get(k, argument) for k, argument in enumerate(arguments)))

        return function

    def output_shapes(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each result for one instance."""
        if sizes not in self.shapes:
            self.shapes[sizes] = self._infer_shapes(sizes)
        return self.shapes[sizes]

    def _infer_shapes(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        fixed = self._fixed(sizes)
        with TRACING, quiet_fakes(), FakeTensorMode(), torch.no_grad():
            arguments: list[torch.Tensor | int] = []
            for position, spec in enumerate(self._inputs_at(sizes)):
                if spec.kind == "size":
                    arguments.append(fixed[position])
                else:
                    shape: tuple[int, ...] = spec.shape  # type: ignore[assignment]
                    arguments.append(torch.empty(shape, dtype=spec.torch_dtype, device=spec.device))
            return tuple(tuple(output.shape) for output in self.function(*arguments))


def _compute(node: ProgramNode, values: dict[Value, torch.Tensor | int]) -> None:
    """Run one node of a block on the values so far."""
    operands = [values[value] for value in node.inputs]
    if isinstance(node.operation, AsSequence):
        outputs: Sequence[torch.Tensor | int] = operands
    elif isinstance(node.operation, RowLoop):
        device = torch.device(device_of(node.inputs) or "cpu")
        outputs = PlainRows(device).row(node.operation.body, operands)
    else:
        assert isinstance(node.operation, TorchCall)
        outputs = call(node.operation, operands)
    values.update(zip(node.outputs, outputs))
