"""Records steps by hand, as eager code would: with the real planner, runner and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.autodiff.recorded import start_run
from penstock.calls.replay import call
from penstock.ir.graph import Block, Home, Node, Wire
from penstock.ir.program import Node as ProgramNode
from penstock.ir.program import Operand, Source, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.plan.recorded import KeyOf, Recorded, Row, StepKind, StepPlanner, Stored
from penstock.plan.schedule import Kind, Shared
from penstock.run.batched import BlockInput
from penstock.run.step_blocks import OpaqueBlock, StepBlock


@dataclass(frozen=True)
class Lazy:
    """A value with its type; two may name one value."""

    value: int
    meta: torch.Tensor
    stored: Stored
    flows: bool

    def detach(self) -> Lazy:
        return Lazy(self.value, self.meta, self.stored, False)


@dataclass(frozen=True)
class Weight:
    """A uniform tensor."""

    number: int
    tensor: torch.Tensor

    @property
    def meta(self) -> torch.Tensor:
        return self.tensor.detach().to("meta")

    @property
    def flows(self) -> bool:
        return self.tensor.requires_grad

    def detach(self) -> Weight:
        return Weight(self.number, self.tensor.detach())


def stored_as(meta: torch.Tensor, device: str = "cpu") -> Stored:
    """How a value of this type is stored."""
    dtype = str(meta.dtype).removeprefix("torch.")
    if meta.dim() >= 2 and 1 <= meta.shape[0] <= 256:
        return Stored(Kind(dtype, tuple(meta.shape[1:]), device), meta.shape[0])
    return Stored(Kind(dtype, tuple(meta.shape), device), None)


def tensor_type(meta: torch.Tensor, device: str = "cpu") -> TensorType:
    return TensorType(str(meta.dtype).removeprefix("torch."), tuple(meta.shape), device)


class Steps:
    """One scope."""

    def __init__(self, *, is_taped: bool = True, device: str = "cpu", **options: Any) -> None:
        self.device = device
        self.kinds: list[StepKind] = []
        self.blocks: list[StepBlock] = []
        self.known: dict[Any, int] = {}
        self.weights: list[torch.Tensor] = []
        self.fetched: list[int] = []
        self.planner = StepPlanner(self.kinds, seed=7)
        self.run = start_run(self.blocks, self.planner, self._fetch, is_taped=is_taped, **options)
        self.next_value = 0
        self.kept: set[int] = set()
        self._forget()

    def _forget(self) -> None:
        self.records: list[tuple[int, list[int], int, int]] = []
        self.inputs: dict[Stored, list[tuple[int, torch.Tensor]]] = {}

    def _fetch(self, number: int) -> torch.Tensor:
        self.fetched.append(number)
        return self.weights[number]

    def weight(self, tensor: torch.Tensor) -> Weight:
        self.weights.append(tensor)
        return Weight(len(self.weights) - 1, tensor)

    def input(self, tensor: torch.Tensor) -> Lazy:
        meta = tensor.detach().to("meta")
        stored = stored_as(meta, self.device)
        self.inputs.setdefault(stored, []).append((self.next_value, tensor))
        return self._new(meta, tensor.requires_grad)

    def _new(self, meta: torch.Tensor, flows: bool) -> Lazy:
        self.next_value += 1
        return Lazy(self.next_value - 1, meta, stored_as(meta, self.device), flows)

    def _record(self, key: Any, make: Callable[[], StepKind], operands: Any, instance: int) -> None:
        if key not in self.known:
            self.known[key] = len(self.kinds)
            self.kinds.append(make())
        values = [item.value for item in operands if isinstance(item, Lazy)]
        self.records.append((self.known[key], values, self.next_value, instance))

    def _key(self, name: str, operands: Sequence[Any], flows: bool) -> Any:
        facts = tuple(
            (item.number if isinstance(item, Weight) else item.stored, item.flows)
            for item in operands
        )
        return name, facts, flows

    def call(
        self, name: str, *operands: Lazy | Weight, no_grad: bool = False, instance: int = 0, **rest
    ) -> Any:
        """A torch call on operands alone; several results come as a list."""
        operation = TorchCall(name, tuple(map(Operand, range(len(operands)))), tuple(rest.items()))
        metas = call(operation, [item.meta for item in operands])
        flows = not no_grad and any(item.flows for item in operands)
        key = (self._key(name, operands, flows), tuple(rest.items()))

        def make() -> StepKind:
            block = self._block(operation, operands, metas, flows)
            return self._launch(name, block, operands, metas)

        self._record(key, make, operands, instance)
        made = [self._new(meta, flows and meta.is_floating_point()) for meta in metas]
        return made[0] if len(made) == 1 else made

    def _launch(self, name: str, block: StepBlock, operands: Any, metas: Any) -> StepKind:
        self.blocks.append(block)
        taken = tuple(
            Shared(item.number) if isinstance(item, Weight) else Row() for item in operands
        )
        stored = tuple(stored_as(meta, self.device) for meta in metas)
        return StepKind(name, taken, stored, len(self.blocks) - 1)

    def _block(self, operation: TorchCall, operands: Any, metas: Any, flows: bool) -> StepBlock:
        wires = tuple(
            Wire(
                k,
                tensor_type(item.meta, self.device),
                Home.UNIFORM if isinstance(item, Weight) else Home.SLOT,
                0,
                0,
            )
            for k, item in enumerate(operands)
        )
        count = len(wires)
        outputs = tuple(
            Wire(count + k, tensor_type(meta, self.device), Home.SLOT, 0, 0)
            for k, meta in enumerate(metas)
        )
        parameters = tuple(Value(wire.number, wire.type) for wire in wires)
        results = tuple(Value(wire.number, wire.type) for wire in outputs)
        source = Source("steps.py", 1, "steps")
        inner = ProgramNode(operation, parameters, results, source)
        node = Node(
            Block(operation.name, (inner,), parameters, results), wires, outputs, 0, 0, source
        )
        flows_in = [k for k, item in enumerate(operands) if item.flows]
        flows_out = [k for k, meta in enumerate(metas) if flows and meta.is_floating_point()]
        return StepBlock(node, flows_in, flows_out)

    def opaque(
        self,
        name: str,
        function: Callable[..., Any],
        *operands: Lazy | Weight,
        shapes: Sequence[tuple[int, ...]],
        instance: int = 0,
        **options: Any,
    ) -> Any:
        """A Python function taken as it is."""
        dtype = operands[0].meta.dtype
        metas = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
        flows = any(item.flows for item in operands)

        def make() -> StepKind:
            inputs = [
                BlockInput(
                    "uniform" if isinstance(item, Weight) else "row",
                    str(item.meta.dtype).removeprefix("torch."),
                    tuple(item.meta.shape),
                    None,
                    self.device,
                )
                for item in operands
            ]
            block = OpaqueBlock(
                name,
                function,
                inputs,
                [tensor_type(meta, self.device) for meta in metas],
                flows_in=[k for k, item in enumerate(operands) if item.flows],
                flows_out=range(len(metas)) if flows else (),
                **options,
            )
            return self._launch(name, block, operands, metas)

        self._record(self._key(name, operands, flows), make, operands, instance)
        made = [self._new(meta, flows) for meta in metas]
        return made[0] if len(made) == 1 else made

    def draw(self, instance: int = 0) -> Lazy:
        """A random key as a value."""

        def make() -> StepKind:
            meta = torch.empty((), dtype=torch.int64, device="meta")
            kind = tensor_type(meta, self.device)
            wire, made = Wire(0, kind, Home.HOST, 0, 0), Wire(1, kind, Home.SLOT, 0, 0)
            given, result = Value(0, kind), Value(1, kind)
            add = TorchCall("torch.add", (Operand(0), 0))
            inner = ProgramNode(add, (given,), (result,))
            node = Node(Block("draw", (inner,), (given,), (result,)), (wire,), (made,), 0, 0)
            self.blocks.append(StepBlock(node))
            return StepKind(
                "draw", (KeyOf(0),), (stored_as(meta, self.device),), len(self.blocks) - 1
            )

        self._record("draw", make, (), instance)
        return self._new(torch.empty((), dtype=torch.int64, device="meta"), False)

    def part(self, whole: Lazy, first: int, length: int | None = None, instance: int = 0) -> Lazy:
        """x[first] or x[first : first + length]."""
        meta = whole.meta[first] if length is None else whole.meta[first : first + length]
        key = ("part", whole.stored, first, length)

        def make() -> StepKind:
            return StepKind(
                "part", (Row(),), (stored_as(meta, self.device),), parts=((first, length),)
            )

        self._record(key, make, (whole,), instance)
        return self._new(meta, whole.flows)

    def join(self, *parts: Lazy, is_stack: bool = False, instance: int = 0) -> Lazy:
        """cat or stack along dimension 0."""
        meta = (torch.stack if is_stack else torch.cat)([part.meta for part in parts])
        key = ("join", tuple(part.stored for part in parts), is_stack)

        def make() -> StepKind:
            rows = (Row(),) * len(parts)
            return StepKind("join", rows, (stored_as(meta, self.device),), is_copy=True)

        self._record(key, make, parts, instance)
        return self._new(meta, any(part.flows for part in parts))

    def flush(self, *kept: Lazy) -> None:
        """Run everything; only these values are used afterwards."""
        values = {lazy.value for lazy in kept}
        first = min(
            [entry[2] for entry in self.records]
            + [number for group in self.inputs.values() for number, _ in group],
            default=self.next_value,
        )
        recorded = Recorded(
            _integers(kind for kind, *_ in self.records),
            _integers(value for _, values, _, _ in self.records for value in values),
            _integers(result for _, _, result, _ in self.records),
            _integers(instance for *_, instance in self.records),
            np.zeros(len(self.records), np.int64),
            tuple(
                (stored, _integers(number for number, _ in group))
                for stored, group in self.inputs.items()
            ),
            _integers(sorted(value for value in values if value >= first)),
            _integers(sorted(self.kept - values)),
        )
        tensors = [[tensor for _, tensor in group] for group in self.inputs.values()]
        self.kept = values
        self._forget()
        self.run.flush(recorded, tensors)

    def outputs(self, *lazies: Lazy) -> list[torch.Tensor]:
        return self.run.outputs(numbers(lazies), [lazy.flows for lazy in lazies])

    def read(self, *lazies: Lazy) -> list[torch.Tensor]:
        return self.run.read(numbers(lazies))

    def finish(self, *lazies: Lazy) -> None:
        self.run.finish(numbers(lazies))


def numbers(lazies: Sequence[Lazy]) -> Any:
    return _integers(lazy.value for lazy in lazies)


def _integers(items: Any) -> Any:
    return np.array(list(items), np.int64)
