"""Graphs of a block for many rows, at chosen sizes.

One instance is traced once for each choice of dynamic sizes, and its graph replayed under vmap for
each number of rows. The points at which to trace are chosen here: small, so that positions and
tables suffice, and such that no two symbols change together, except at the last point, which only
verifies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.run.batched.decompose import substitutes_for
from penstock.run.batched.functorch_adapter import (
    TensorFunction,
    fake_mode,
    fake_tensors,
    replay,
    trace_function,
    vectorise,
)
from penstock.run.batched.indexing import TensorIndexing
from penstock.run.batched.inputs import BlockInput
from penstock.run.batched.sizes import ROWS, Point


class BlockTraces:
    """Traces of one single-instance function."""

    def __init__(self, function: TensorFunction, inputs: Sequence[BlockInput]) -> None:
        self.function = function
        self.inputs = tuple(inputs)
        self.tensors = [spec for spec in inputs if spec.kind != "size"]
        self.is_row = [spec.kind == "row" for spec in self.tensors]
        self._mode = fake_mode()
        self._instances: dict[tuple[tuple[str, int], ...], torch.fx.GraphModule] = {}

    def instance_at(self, point: Point) -> torch.fx.GraphModule:
        """The graph of one instance."""
        key = tuple((name, size) for name, size in point.items() if name != ROWS)
        if key not in self._instances:
            tensors = self._fakes(point, batched=False)
            self._instances[key] = trace_function(self._with_sizes(point), tensors, self._mode)
        return self._instances[key]

    def batched_at(self, point: Point) -> torch.fx.GraphModule:
        """The graph for `point[ROWS]` rows. A last, unused input carries the rows where no other
        does.
        """
        instance = self.instance_at(point)
        single = replay(instance, substitutes_for(instance, self.is_row))

        def with_witness(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return single(*tensors[:-1])

        many = vectorise(with_witness, [*self.is_row, True])
        tensors = self._fakes(point, batched=True)
        tensors += fake_tensors(self._mode, [((point[ROWS],), torch.bool, "cpu")])
        return trace_function(many, tensors, self._mode)

    def forget(self) -> None:
        """Drop the traces; a form that has been built needs them no more."""
        self._instances.clear()

    def _fakes(self, point: Point, *, batched: bool) -> list[torch.Tensor]:
        shapes = [
            (spec.sizes_at(point, batched=batched), spec.torch_dtype, spec.device)
            for spec in self.tensors
        ]
        return fake_tensors(self._mode, shapes)

    def _with_sizes(self, point: Point) -> TensorFunction:
        """The function of the tensors alone, its size arguments filled in."""

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            remaining = iter(tensors)
            arguments = [
                point[str(spec.symbol)] if spec.kind == "size" else next(remaining)
                for spec in self.inputs
            ]
            with TensorIndexing():
                return tuple(self.function(*arguments))

        return run


def trace_points(names: Sequence[str], *, scale: int, verify: bool) -> list[dict[str, int]]:
    """A base point, one more for each symbol, and one to verify."""
    base = {ROWS: 5, **{name: (4 + i) * scale for i, name in enumerate(names)}}
    other = {ROWS: 8, **{name: (7 + 2 * i) * scale for i, name in enumerate(names)}}
    last = {ROWS: 3, **{name: (6 + i) * scale for i, name in enumerate(names)}}
    points = [base, *({**base, name: size} for name, size in other.items())]
    return [*points, last] if verify else points


def check_points(names: Sequence[str], *, scale: int) -> list[dict[str, int]]:
    """Points at which no trace was made, for comparison with row-by-row execution."""
    small = {name: (2 + i) * scale for i, name in enumerate(names)}
    large = {name: (5 + 3 * i) * scale for i, name in enumerate(names)}
    choices = [(3, small), (1, large), (2, large)] if names else [(3, small), (1, small)]
    return [{ROWS: rows, **sizes} for rows, sizes in choices]
