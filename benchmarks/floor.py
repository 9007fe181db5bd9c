"""The least time that the products of a computation can take here: a bound that no schedule beats.

It is the number of floating-point operations over the best rate that any product reached in the
same run, whatever its shape, and whether the BLAS or oneDNN made it. Products in the shapes of a
schedule are slower, as some have few rows; `baselines.products` times those.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.baselines.products import Layer, operations

#: Rows of the products that look for the best rate, and sides of a square one.
ROWS, SIDE = 2048, 1024

#: How often each is tried in a round: a bound is the best of many.
TRIES = 2

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    return _onednn(left, right.t(), None, "none", [], "")  # type: ignore[misc, no-any-return]


#: torch has two libraries for such products, and neither is the faster one everywhere.
WAYS = (torch.mm,) if _onednn is None else (torch.mm, _by_onednn)


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

    @torch.no_grad()
    def look(self) -> None:
        """Multiply once more in all shapes."""
        for left, right in self._factors:
            done = 2 * left.shape[0] * left.shape[1] * right.shape[1]
            for multiply in WAYS * TRIES:
                begin = perf_counter()
                multiply(left, right)
                self.best_rate = max(self.best_rate, done / (perf_counter() - begin))

    def seconds(self) -> float:
        """All operations at the best rate."""
        return self.operations / self.best_rate
