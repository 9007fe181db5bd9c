"""A closed loop run by torch calls: for one row as it is written, and for many rows at once.

Rows that are done are left out of later iterations, so the result is what each row gives by itself,
and torch's autograd can differentiate it as often as asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from penstock.calls.replay import call
from penstock.ir.program import Body, Branch, Constant, Loop, Node, TorchCall, Value
from penstock.ir.types import TensorType

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
    outputs = _run_body(block.loop.body, dict(zip(block.loop.body.inputs, inputs)), rows)
    made = dict(zip(block.step.outputs, outputs, strict=True))
    return tuple(made[value] for value in block.block.results)


def run_row(body: Body, operands: Sequence[torch.Tensor | int]) -> tuple[torch.Tensor, ...]:
    """The results of a closed loop for one row."""
    values = {
        value: operand.unsqueeze(0)
        for value, operand in zip(body.inputs, operands, strict=True)
        if isinstance(operand, torch.Tensor)
    }
    return tuple(output.squeeze(0) for output in _run_body(body, values, 1))


def _run_body(body: Body, values: Mapping[Value, torch.Tensor], rows: int) -> list[torch.Tensor]:
    known = dict(values)
    for node in body.nodes:
        outputs = _run_node(node, known, rows)
        known.update(zip(node.outputs, outputs, strict=True))
    return [known[value] for value in body.outputs]


def _run_node(node: Node, values: Values, rows: int) -> Sequence[torch.Tensor]:
    match node.operation:
        case TorchCall() as operation:
            operands = [values[value] for value in node.inputs]
            if not operands or rows == 0:
                return [_empty(value, rows) for value in node.outputs]
            made = torch.vmap(lambda *single: call(operation, single))(*operands)
            return tuple(made)
        case Constant(value=number):
            kind = node.outputs[0].type
            assert isinstance(kind, TensorType)
            return [torch.full((rows,), number, dtype=getattr(torch, kind.dtype))]
        case Branch(bodies=bodies):
            return _run_branch(node, bodies, values, rows)
        case Loop() as loop:
            return _run_loop(loop, [values[value] for value in node.inputs], values, rows)
        case operation:
            raise AssertionError(f"{operation} is not row-wise")


def _empty(value: Value, rows: int) -> torch.Tensor:
    kind = value.type
    assert isinstance(kind, TensorType)
    return torch.empty((rows, *kind.shape), dtype=getattr(torch, kind.dtype))  # type: ignore[arg-type]


def _run_branch(
    node: Node, bodies: Sequence[Body], values: Values, rows: int
) -> Sequence[torch.Tensor]:
    """Each arm for the rows that take it, then the rows in order again."""
    taken = values[node.inputs[0]].bool()
    parts = [(~taken).nonzero().squeeze(1), taken.nonzero().squeeze(1)]
    made = [
        _run_body(body, _chosen(values, index), len(index))
        for body, index in zip(bodies, parts, strict=True)
    ]
    order = torch.cat(parts).argsort()
    return [torch.cat(pair).index_select(0, order) for pair in zip(*made, strict=True)]


def _chosen(values: Mapping[Value, torch.Tensor], index: torch.Tensor) -> Values:
    return {value: tensor.index_select(0, index) for value, tensor in values.items()}


def _run_loop(
    loop: Loop, carried: Sequence[torch.Tensor], values: Values, rows: int
) -> Sequence[torch.Tensor]:
    """Iterations for the rows that still run; those that end are set aside."""
    outside, running = dict(values), torch.arange(rows)
    ended: list[list[torch.Tensor]] = []
    places: list[torch.Tensor] = []
    count = 0
    while True:
        known = {**outside, **dict(zip(loop.condition.inputs, carried, strict=True))}
        goes_on = _run_body(loop.condition, known, len(running))[0].bool()
        if loop.maximum_iterations is not None and count >= loop.maximum_iterations:
            goes_on = torch.zeros_like(goes_on)
        still, over = goes_on.nonzero().squeeze(1), (~goes_on).nonzero().squeeze(1)
        ended.append([values.index_select(0, over) for values in carried])
        places.append(running.index_select(0, over))
        if not len(still):
            break
        carried = [values.index_select(0, still) for values in carried]
        outside, running = _chosen(outside, still), running.index_select(0, still)
        known = {**outside, **dict(zip(loop.body.inputs, carried, strict=True))}
        carried = _run_body(loop.body, known, len(running))
        count += 1
    order = torch.cat(places).argsort()
    return [torch.cat(column).index_select(0, order) for column in zip(*ended, strict=True)]
