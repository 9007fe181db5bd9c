"""Gradients of blocks that are taken as they are: torch's autograd graph of a launch is kept.

Where rows run one by one each has a graph of its own, so that rows can go backward apart. Where one
call serves all rows, those without a cotangent get a zero one; a call of a program is told of them,
so that they are left out. The graph goes when the page that holds it is released.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from penstock.autodiff.call import call_behind
from penstock.autodiff.joint import Pattern
from penstock.plan.schedule import Integers
from penstock.run.step_blocks import OpaqueBlock

Arguments = Sequence[torch.Tensor | int]


class KeptGraph:
    """What torch's autograd has recorded of one launch."""

    def __init__(
        self,
        block: OpaqueBlock,
        operands: Sequence[int],
        leaves: list[list[torch.Tensor]],
        results: list[tuple[torch.Tensor, ...]],
    ) -> None:
        self.block = block
        self.operands = operands
        #: For each call the leaves that stand for the operands, and what it has made: one call per
        #: row, or one for all rows.
        self.leaves = leaves
        self.results = results

    def gradients(
        self, pattern: Pattern, index: Integers | None, cotangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The gradient of each operand for some rows (None: all)."""
        if self.block.is_batched:
            return self._of_all(pattern, index, cotangents)
        rows = range(len(self.leaves)) if index is None else index.tolist()
        split = [values.unbind(0) for values in cotangents]
        pairs = [
            (self.results[row][k], grads[place])
            for place, row in enumerate(rows)
            for k, grads in zip(pattern, split, strict=True)
        ]
        leaves = {id(leaf): leaf for row in rows for leaf in self.leaves[row]}
        found = dict(zip(leaves, _differentiate(pairs, list(leaves.values())), strict=True))
        by_row = [[found[id(leaf)] for leaf in self.leaves[row]] for row in rows]
        return [
            self._joined(rows, place, [grads[place] for grads in by_row])
            for place in range(len(self.operands))
        ]

    def _joined(
        self, rows: Sequence[int], place: int, grads: Sequence[torch.Tensor | None]
    ) -> torch.Tensor | None:
        """The gradients of an operand for all rows; a uniform one has the same leaf in every
        row.
        """
        if self.block.inputs[self.operands[place]].kind == "uniform":
            return grads[0]
        if all(grad is None for grad in grads):
            return None
        filled = zip(rows, grads, strict=True)
        return torch.stack(
            [
                torch.zeros_like(self.leaves[row][place]) if grad is None else grad
                for row, grad in filled
            ]
        )

    def _of_all(
        self, pattern: Pattern, index: Integers | None, cotangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        (leaves,), (results,) = self.leaves, self.results
        chosen = None if index is None else torch.from_numpy(index)
        pairs = []
        for k, grads in zip(pattern, cotangents, strict=True):
            if chosen is not None:
                where = chosen.to(grads.device, non_blocking=True)
                grads = torch.zeros_like(results[k]).index_copy_(0, where, grads)
            pairs.append((results[k], grads))
        with _about(results, index):
            found = _differentiate(pairs, leaves)
        if chosen is None:
            return found
        return [
            grad
            if grad is None or self.block.inputs[operand].kind == "uniform"
            else grad.index_select(0, chosen.to(grad.device, non_blocking=True))
            for operand, grad in zip(self.operands, found, strict=True)
        ]


@contextmanager
def _about(results: Sequence[torch.Tensor], index: Integers | None) -> Iterator[None]:
    """Tell the calls that have made results which of their instances have cotangents."""
    calls = [made for made in map(call_behind, results) if made is not None]
    for made in calls:
        made.reached = index
    try:
        yield
    finally:
        for made in calls:
            made.reached = None


def _differentiate(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of leaves; the graph stays, and goes with the page."""
    flowing = [(made, grad.reshape(made.shape)) for made, grad in pairs if made.requires_grad]
    if not flowing:
        return [None] * len(leaves)
    made, grads = zip(*flowing, strict=True)
    return list(torch.autograd.grad(made, leaves, grads, retain_graph=True, allow_unused=True))


def launch_kept(
    block: OpaqueBlock, rows: int, arguments: Arguments, operands: Sequence[int]
) -> tuple[tuple[torch.Tensor, ...], KeptGraph]:
    """Run a block for all rows under autograd: the results without a graph, and the graph."""
    uniforms = [k for k in operands if block.inputs[k].kind == "uniform"]
    given = _with_leaves(arguments, uniforms)
    with torch.enable_grad():
        if block.is_batched:
            given = _with_leaves(given, [k for k in operands if k not in uniforms])
            calls, made = [given], [block.call(rows, *given)]
            results = [values.detach() for values in made[0]]
        else:
            own = [k for k in operands if k not in uniforms]
            calls = [_with_leaves(block.row_arguments(given, row), own) for row in range(rows)]
            made = [block.call_row(row, each) for row, each in enumerate(calls)]
            columns = zip(*made, strict=True)
            results = [torch.stack([each.detach() for each in column]) for column in columns]
    leaves = [[each[k] for k in operands] for each in calls]
    return tuple(results), KeptGraph(block, operands, leaves, made)  # type: ignore[arg-type]


def _with_leaves(arguments: Arguments, positions: Sequence[int]) -> list[torch.Tensor | int]:
    """The arguments, with leaves of a graph of their own at these positions."""
    found = list(arguments)
    for position in positions:
        argument = found[position]
        assert isinstance(argument, torch.Tensor)
        found[position] = argument.detach().requires_grad_()
    return found
