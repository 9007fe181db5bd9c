"""A closed loop run by torch calls: for one row as it is written, and for many rows at once.

Rows that are done are left out of later iterations, so the result is what each row gives by itself,
and torch's autograd can differentiate it as often as asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from penstock.calls.replay import call
from penstock.ir.program import Body, Branch, Constant, Loop, Node, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.run.batched.decompose import OWN_RULES

if TYPE_CHECKING:
    from penstock.run.native.block import RowLoopBlock

Values = dict[Value, torch.Tensor]


def run_rows(
    block: RowLoopBlock, rows: int, arguments: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The results of a closed loop for all rows of a launch."""
    by_row = [
        argument if spec.kind == "row" else argument.expand(rows, *argument.shape)
        for argument, spec in zip(arguments, block.inputs, strict=True)
    ]
    known = dict(zip(block.block.parameters, by_row, strict=True))
    inputs = [known[value] for value in block.step.inputs]
    body = block.loop.body
    plain = PlainRows(block.device)
    outputs = plain.body(body, dict(zip(body.inputs, inputs, strict=True)), rows)
    made = dict(zip(block.step.outputs, outputs, strict=True))
    results = zip(block.block.results, block.kinds, strict=True)
    return tuple(made[value].to(kind.device) for value, kind in results)


@dataclass(slots=True)
class PlainRows:
    """One run by torch calls, and which calls it made: each with its operands and outputs."""

    #: Where everything is computed.
    device: torch.device
    calls: list[tuple[Node, Sequence[torch.Tensor], Sequence[torch.Tensor]]] = field(
        default_factory=list
    )
    #: Whether the calls are remembered.
    remembers: bool = False

    def row(self, body: Body, operands: Sequence[torch.Tensor | int]) -> tuple[torch.Tensor, ...]:
        """The results of a closed loop for one row."""
        values = {
            value: operand.to(self.device).unsqueeze(0)
            for value, operand in zip(body.inputs, operands, strict=True)
            if isinstance(operand, torch.Tensor)
        }
        return tuple(output.squeeze(0) for output in self.body(body, values, 1))

    def body(
        self, body: Body, values: Mapping[Value, torch.Tensor], rows: int
    ) -> list[torch.Tensor]:
        """The outputs of a body; values are [rows, ...]."""
        known = dict(values)
        for node in body.nodes:
            outputs = self._node(node, known, rows)
            known.update(zip(node.outputs, outputs, strict=True))
        return [known[value] for value in body.outputs]

    def _node(self, node: Node, values: Values, rows: int) -> Sequence[torch.Tensor]:
        match node.operation:
            case TorchCall() as operation:
                return self._call(node, operation, [values[value] for value in node.inputs], rows)
            case Constant(value=number):
                dtype = _kind(node.outputs[0])[1]
                return [torch.full((rows,), number, dtype=dtype, device=self.device)]
            case Branch(bodies=bodies):
                return self._branch(node, bodies, values)
            case Loop() as loop:
                return self._loop(loop, [values[value] for value in node.inputs], values, rows)
            case operation:
                raise AssertionError(f"{operation} is not row-wise")

    def _call(
        self, node: Node, operation: TorchCall, operands: list[torch.Tensor], rows: int
    ) -> Sequence[torch.Tensor]:
        if not rows:  # torch.vmap takes at least one
            kinds, device = map(_kind, node.outputs), self.device
            return [torch.empty((0, *shape), dtype=dtype, device=device) for shape, dtype in kinds]
        made = tuple(torch.vmap(_single(operation))(*operands))
        if self.remembers:
            self.calls.append((node, operands, made))
        return made

    def _branch(self, node: Node, bodies: Sequence[Body], values: Values) -> Sequence[torch.Tensor]:
        """Each arm for the rows that take it, then the rows in order again."""
        taken = values[node.inputs[0]].bool()
        parts = [(~taken).nonzero().squeeze(1), taken.nonzero().squeeze(1)]
        made = [
            self.body(body, _chosen(values, index), len(index))
            for body, index in zip(bodies, parts, strict=True)
        ]
        order = torch.cat(parts).argsort()
        return [torch.cat(pair).index_select(0, order) for pair in zip(*made, strict=True)]

    def _loop(
        self, loop: Loop, carried: Sequence[torch.Tensor], values: Values, rows: int
    ) -> Sequence[torch.Tensor]:
        """Iterations for the rows that still run; those that end are set aside."""
        outside, running = dict(values), torch.arange(rows, device=self.device)
        ended: list[list[torch.Tensor]] = []
        places: list[torch.Tensor] = []
        while True:
            known = {**outside, **dict(zip(loop.condition.inputs, carried, strict=True))}
            goes_on = self.body(loop.condition, known, len(running))[0].bool()
            if len(ended) == loop.maximum_iterations:
                goes_on = torch.zeros_like(goes_on)
            still, over = goes_on.nonzero().squeeze(1), (~goes_on).nonzero().squeeze(1)
            ended.append([tensor.index_select(0, over) for tensor in carried])
            places.append(running.index_select(0, over))
            if not len(still):
                break
            carried = [tensor.index_select(0, still) for tensor in carried]
            outside, running = _chosen(outside, still), running.index_select(0, still)
            known = {**outside, **dict(zip(loop.body.inputs, carried, strict=True))}
            carried = self.body(loop.body, known, len(running))
        order = torch.cat(places).argsort()
        return [torch.cat(column).index_select(0, order) for column in zip(*ended, strict=True)]


#: Extremes of all elements, which vmap differentiates otherwise than torch where several are equal.
_EXTREMES = {"max": torch.ops.aten.max.default, "min": torch.ops.aten.min.default}


def _single(operation: TorchCall) -> Callable[..., Sequence[torch.Tensor]]:
    """One call as vmap is to see it."""
    extreme = _EXTREMES.get(operation.name.rsplit(".", 1)[-1])
    if extreme is not None and len(operation.args) == 1 and not operation.kwargs:
        return lambda *single: [OWN_RULES[extreme](*single)]
    return lambda *single: call(operation, single)


def _kind(value: Value) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and the dtype of one row of a value."""
    assert isinstance(value.type, TensorType)
    return value.type.shape, getattr(torch, value.type.dtype)  # type: ignore[return-value]


def _chosen(values: Mapping[Value, torch.Tensor], index: torch.Tensor) -> Values:
    return {value: tensor.index_select(0, index) for value, tensor in values.items()}
