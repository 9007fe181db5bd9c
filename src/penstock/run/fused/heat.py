"""When compiling pays: once the launches of a block so far would have saved what it costs.

Compiling takes seconds. Whoever runs a block a few times never waits for a compiler, and whoever
runs it long waits no longer than was lost before. The estimate depends on sizes, and on whether the
code is on disk already: then compiling takes a moment, and a script that runs for the second time
is fast nearly at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

import torch

from penstock.run.batched import BlockInput
from penstock.run.fused.setting import Fusion

#: What compiling takes, by device, at first and again.
PRICE = {"cpu": 3.0, "cuda": 20.0}
PRICE_AGAIN = {"cpu": 0.4, "cuda": 2.0}
#: What a compiled launch saves: once, and for each value.
SAVING = {"cpu": 8e-5, "cuda": 1.5e-4}
SAVING_A_VALUE = {"cpu": 1.5e-9, "cuda": 0.0}


class Heat:
    """How much time a half of a block would have saved."""

    __slots__ = ("_was_compiled", "a_launch", "a_row", "again", "is_settled", "price", "seconds")

    def __init__(self, inputs: Iterable[BlockInput], was_compiled: Callable[[], bool]) -> None:
        rows = [spec for spec in inputs if spec.kind == "row"]
        sizes = [prod(size for size in spec.shape if isinstance(size, int)) for spec in rows]
        device = torch.device(rows[0].device).type if rows else "none"
        self.seconds = 0.0
        self.price = PRICE.get(device, 0.0)
        #: The price where the code is on disk; None once it is known whether it is.
        self.again: float | None = PRICE_AGAIN.get(device, 0.0)
        self._was_compiled = was_compiled
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
        if self.again is not None and self.seconds > self.again:
            again, self.again = self.again, None
            if again < self.price and self._was_compiled():
                self.price = again
        return self.seconds > self.price or Fusion.mode == "always"
