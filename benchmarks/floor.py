"""The least time that the products of a computation can take here: a bound that no schedule beats.

It is the number of floating-point operations over the best rate that any product reached in the
same run, whatever its shape. Products in the shapes of a schedule are slower, as some have few
rows; `baselines.products` times those.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from benchmarks.baselines.products import Layer, operations

#: Rows of the products that look for the best rate, and sides of a square one.
ROWS, SIDE = 2048, 1024


class ProductFloor:
    """Products of float32 on the CPU, at the best rate that was seen."""

    name = "floor"

    def __init__(self, layers: Sequence[Layer], *, training: bool) -> None:
        self.operations = operations(layers, training=training)
        shapes = {(ROWS, layer.inputs, layer.outputs) for layer in layers}
        self._factors = [
            (torch.randn(rows, inner), torch.randn(inner, columns))
            for rows, inner, columns in sorted({*shapes, (SIDE, SIDE, SIDE)})
        ]
        #: Operations a second.
        self.best_rate = 0.0

    def look(self) -> None:
        """Multiply once more in all shapes."""
        for left, right in self._factors:
            begin = perf_counter()
            torch.mm(left, right)
            seconds = perf_counter() - begin
            done = 2 * left.shape[0] * left.shape[1] * right.shape[1]
            self.best_rate = max(self.best_rate, done / seconds)

    def seconds(self) -> float:
        """All operations at the best rate."""
        return self.operations / self.best_rate
