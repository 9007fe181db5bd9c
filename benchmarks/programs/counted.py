"""A loop whose length the host knows, as programs for one instance: three ways to write it.

`Body` is one iteration, for one instance or for rows: a few operations on a short vector, or a
product of a matrix with a long one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import penstock as ps


class Body(nn.Module):
    """From the state and an element of the sequence to the next state."""

    def __init__(self, width: int, *, large: bool) -> None:
        super().__init__()
        self.width, self.large = width, large
        self.scale = nn.Parameter(torch.rand(width))
        self.layer = nn.Linear(width, width) if large else None

    def forward(self, state: Tensor, x: Tensor) -> Tensor:
        """The next state."""
        mixed: Tensor = state if self.layer is None else self.layer(state)
        return torch.tanh(self.scale * mixed + x)


def scanned(body: Body) -> ps.Function:
    """Through `scan`."""

    @ps.function
    def last(sequence: Tensor) -> Any:
        return ps.scan(lambda state, x: (body(state, x), ()), torch.zeros(body.width), sequence)[0]

    return last


def folded(body: Body) -> ps.Function:
    """Through `foldl`."""

    @ps.function
    def last(sequence: Tensor) -> Any:
        return ps.foldl(body, sequence, torch.zeros(body.width))

    return last


def ranged(body: Body) -> ps.Function:
    """As a plain `for` over a range, converted from its source."""

    @ps.function
    def last(sequence: Tensor) -> Any:
        state = torch.zeros(body.width)
        for t in range(sequence.shape[0]):
            state = body(state, sequence[t])
        return state

    return last


#: By what the loop is written with.
WAYS: dict[str, Callable[[Body], ps.Function]] = {
    "scan": scanned,
    "foldl": folded,
    "for range": ranged,
}
