"""When compiling pays: once the launches of a block so far would have saved what it costs.

Compiling takes seconds. Whoever runs a block a few times never waits for a compiler, and whoever
runs it long waits no longer than was lost before. The estimate depends on sizes alone, so that two
runs of a program compile at the same launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch

from penstock.run.batched import BlockInput
from penstock.run.fused.setting import Fusion

#: What compiling takes, and what a compiled launch saves, by device: once, and for each value.
PRICE = {"cpu": 2.0, "cuda": 20.0}
SAVING = {"cpu": 3e-5, "cuda": 1.5e-4}
SAVING_A_VALUE = {"cpu": 5e-10, "cuda": 0.0}


class Heat:
    """How much time a half of a block would have saved."""

    __slots__ = ("a_launch", "a_row", "is_settled", "price", "seconds")

    def __init__(self, inputs: Iterable[BlockInput]) -> None:
        rows = [spec for spec in inputs if spec.kind == "row"]
        sizes = [prod(size for size in spec.shape if isinstance(size, int)) for spec in rows]
        device = torch.device(rows[0].device).type if rows else "none"
        self.seconds = 0.0
        self.price = PRICE.get(device, 0.0)
        self.a_launch = SAVING.get(device, 0.0)
        self.a_row = SAVING_A_VALUE.get(device, 0.0) * sum(sizes)
        #: Whether the plain way is the one for good.
        self.is_settled = device not in SAVING

    def rise(self, rows: int) -> bool:
        """Whether launches are to be run compiled, after one more of so many rows."""
        if self.is_settled or Fusion.mode == "never":
            return False
        if rows:
            self.seconds += self.a_launch + self.a_row * rows
        return self.seconds > self.price or Fusion.mode == "always"
