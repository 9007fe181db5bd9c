"""How long to compute is decided by each example: adaptive computation time, and early exits.

Examples that are done leave the batch; the others go on in smaller launches. The decision carries
no gradient; what was computed on the way does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import penstock as ps


class Pondered(NamedTuple):
    """What came of an adaptive number of steps."""

    #: The mean of the states, each weighted by the probability of halting there.
    state: Tensor
    #: N + R, to be kept low: gradients reach the halting probabilities through it.
    cost: Tensor
    #: N, how many steps were made.
    steps: Tensor


class AdaptiveComputation(nn.Module):
    """A step that is repeated until its own output says stop (Graves, 2016).

    With the state s_0 and the input x, for n = 1, 2, ...::

        s_n = step(x, s_(n-1))
        p_n = s(w . s_n + b)

    N is the first n with p_1 + ... + p_n >= 1 - epsilon, or `limit`. With the remainder
    R = 1 - (p_1 + ... + p_(N-1)) the result is::

        state = p_1 s_1 + ... + p_(N-1) s_(N-1) + R s_N
        cost  = N + R

    Arguments:
        step: a module from an input and a state, float[size], to the next state, as torch's cells.
        size: of the state.
        limit: the most steps.
        epsilon: what may be missing from 1, so that one step can be enough.

    >>> model = AdaptiveComputation(nn.GRUCell(4, 8), size=8, limit=20)
    >>> results = ps.map(model, torch.randn(5, 4), torch.zeros(5, 8))
    >>> all(1 <= result.steps <= 20 for result in results)
    True
    """

    def __init__(
        self, step: nn.Module, size: int, *, limit: int = 100, epsilon: float = 0.01
    ) -> None:
        super().__init__()
        if limit < 1:
            raise ValueError(
                f"AdaptiveComputation: the limit is {limit}, and one step is always made. "
                "Pass a limit of 1 or more."
            )
        self.step = step
        self.halt = nn.Linear(size, 1)
        self.limit = limit
        self.epsilon = epsilon

    @ps.function
    def forward(self, x: Tensor, state: Tensor) -> Pondered:  # type: ignore[override]
        """The weighted state, its cost, and the number of steps."""
        total = torch.zeros_like(state)
        steps: Any = 0
        remainder = cost = state.new_ones(())
        halts = torch.zeros_like(remainder, dtype=torch.bool)
        while not halts:
            state, steps = self.step(x, state), steps + 1
            p = torch.sigmoid(self.halt(state)).squeeze(-1)
            halts = (remainder - p <= self.epsilon) | (steps >= self.limit)
            cost = steps + remainder
            weight = remainder if halts else p
            total = total + weight * state
            remainder = remainder - weight
        return Pondered(total, cost, steps)


class EarlyExit(nn.Module):
    """Layers, each with a head; the first head that is sure enough gives the answer.

    For the layers l = 1, 2, ..., L::

        x = layer_l(x)
        y = head_l(x)
        stop if max(softmax(y)) >= threshold

    Arguments:
        layers: modules from a vector to a vector.
        heads: as many modules from such a vector to scores, float[classes].
        threshold: the probability of the likeliest class that is sure enough.

    >>> layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    >>> model = EarlyExit(layers, [nn.Linear(4, 2) for _ in range(3)], threshold=0.6)
    >>> results = ps.map(model, torch.randn(10, 4))
    >>> all(1 <= depth <= 3 for scores, depth in results)
    True
    """

    def __init__(
        self, layers: Iterable[nn.Module], heads: Iterable[nn.Module], *, threshold: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.heads = nn.ModuleList(heads)
        self.threshold = threshold
        if len(self.layers) != len(self.heads) or not self.layers:
            raise ValueError(
                f"EarlyExit: each layer has a head: {len(self.layers)} layers and "
                f"{len(self.heads)} heads. Pass as many heads as layers, one at least."
            )

    @ps.function
    def forward(self, x: Tensor) -> tuple[Tensor, int]:  # type: ignore[override]
        """The scores of the head that gave the answer, and how many layers it took."""
        for depth, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True), 1):
            x = layer(x)
            scores = head(x)
            if depth == len(self.layers):
                break
            if torch.softmax(scores, -1).max() >= self.threshold:
                return scores, depth
        return scores, depth

    @ps.function
    def exits(self, x: Tensor) -> Tensor:
        """The scores of all heads, float[L, classes], to train them with."""
        scores = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x)
            scores.append(head(x))
        return torch.stack(scores)
