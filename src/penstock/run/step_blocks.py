"""Blocks of recorded steps: a straight line of torch calls, or a Python function taken as it is.

Which operands and results carry gradients is a property of the block: the same calls recorded under
`torch.no_grad`, or on detached operands, are another block. A launch without any is not taped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from penstock.calls.autocast import OFF, Autocast, autocast_as
from penstock.ir.graph import Block, Home, Node, Wire
from penstock.ir.program import Source
from penstock.ir.types import TensorType
from penstock.run.batched import BlockInput
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import Failure, RunnableBlock
from penstock.run.faults import blame_row

#: What a block does for one row: one tensor, or several.
Results = torch.Tensor | Sequence[torch.Tensor]


class StepBlock(RunnableBlock):
    """A block of recorded steps.

    Arguments:
        node: a node whose operation is a `Block`; the homes of its inputs say where they come from:
            SLOT for values of rows, UNIFORM for shared tensors, HOST for random keys.
        flows_in: positions of the inputs whose gradients may be asked for.
        flows_out: positions of the outputs that may have cotangents.
        autocast: the state of autocast that the calls run in.
    """

    warns = False

    def __init__(
        self,
        node: Node,
        flows_in: Iterable[int] = (),
        flows_out: Iterable[int] = (),
        autocast: Autocast = OFF,
    ) -> None:
        super().__init__(node, autocast)
        #: In order; either both are empty or none is.
        self.flows_in, self.flows_out = tuple(sorted(flows_in)), tuple(sorted(flows_out))
        if not self.flows_in or not self.flows_out:
            self.flows_in = self.flows_out = ()


class OpaqueBlock(StepBlock):
    """A Python function that is called as it is: row by row, or once for all rows of a launch.

    Arguments:
        name: for records and errors.
        function: called as function(*arguments) for each row in order, or, if the block is
            `is_batched`, as function(rows, *arguments) with stacked row arguments, to return
            stacked results. Tensors that it reads beside its arguments get no gradients.
        inputs: where the arguments come from ("row" or "uniform"), and their types.
        outputs: the types of the results for one row.
        is_repeatable: whether calling it again with the same arguments gives the same and leaves
            nothing behind; gradients of gradients need that.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Results],
        inputs: Sequence[BlockInput],
        outputs: Sequence[TensorType],
        *,
        is_batched: bool = False,
        flows_in: Iterable[int] = (),
        flows_out: Iterable[int] = (),
        is_repeatable: bool = True,
        source: Source | None = None,
        autocast: Autocast = OFF,
    ) -> None:
        super().__init__(_opaque_node(name, inputs, outputs, source), flows_in, flows_out, autocast)
        self.opaque_function = function
        self.is_batched = is_batched
        self.is_repeatable = is_repeatable
        self.inputs = list(inputs)

    @property
    def unbatched(self) -> tuple[str, ...]:
        """The function itself, if its rows run one by one."""
        return () if self.is_batched else (self.name,)

    def run(self, rows: int, arguments: Sequence[torch.Tensor | int]) -> Sequence[torch.Tensor]:
        """The results for all rows of a launch."""
        if self.is_batched:
            return self.call(rows, *arguments)
        made = [self.call_row(row, self.row_arguments(arguments, row)) for row in range(rows)]
        return [torch.stack(column) for column in zip(*made, strict=True)]

    def plain_function(self) -> None:
        """There is none: the function may do anything."""

    def function_for(self, arguments: Sequence[torch.Tensor | int]) -> BatchFunction:
        """What to call, as function(rows, *arguments)."""
        return lambda rows, *arguments: tuple(self.run(rows, arguments))

    def call(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """The results of one call of the function."""
        with autocast_as(self.autocast):
            results = self.opaque_function(*arguments)
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)

    def call_row(
        self, row: int, arguments: Sequence[torch.Tensor | int]
    ) -> tuple[torch.Tensor, ...]:
        """The results for one row; an error remembers which it was."""
        try:
            return self.call(*arguments)
        except Exception as error:
            blame_row(error, row)
            raise

    def row_arguments(
        self, arguments: Sequence[torch.Tensor | int], row: int
    ) -> list[torch.Tensor | int]:
        """The arguments for one row."""
        return [
            argument[row] if spec.kind == "row" and isinstance(argument, torch.Tensor) else argument
            for spec, argument in zip(self.inputs, arguments, strict=True)
        ]

    def failure(self, arguments: Sequence[torch.Tensor | int]) -> Failure | None:
        """Not known: the function is not called again to find out."""
        return None


def _opaque_node(
    name: str, inputs: Sequence[BlockInput], outputs: Sequence[TensorType], source: Source | None
) -> Node:
    """A node with a block that says nothing of what it does."""
    wires = [
        Wire(
            number,
            TensorType(spec.dtype, spec.shape, spec.device),
            Home.UNIFORM if spec.kind == "uniform" else Home.SLOT,
            0,
            0,
        )
        for number, spec in enumerate(inputs)
    ]
    made = [Wire(len(wires) + k, kind, Home.SLOT, 0, 0) for k, kind in enumerate(outputs)]
    return Node(Block(name, (), (), ()), tuple(wires), tuple(made), 0, 0, source)
