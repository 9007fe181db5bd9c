"""The matrix products of a run, in number and shape, and nothing else of it.

A schedule is a list of layers with their rows. What its products take by themselves is a bound for
this schedule; `benchmarks.floor` has the one for every schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Layer(NamedTuple):
    """One product: rows of inputs times a matrix of weights."""

    rows: int
    inputs: int
    outputs: int
    #: Whether its inputs have a gradient, which is one more product; fixed word vectors have none.
    learns_inputs: bool = True


def operations(layers: Sequence[Layer], *, training: bool) -> int:
    """Multiplications and additions; each gradient takes as many as forward."""
    return sum(
        2 * rows * inputs * outputs * (2 + learns_inputs if training else 1)
        for rows, inputs, outputs, learns_inputs in layers
    )


class Products:
    """The products of one run on random numbers."""

    def __init__(self, layers: Sequence[Layer], device: torch.device | str = "cpu") -> None:
        weights = {
            (inputs, outputs): torch.randn(outputs, inputs, device=device)
            for _, inputs, outputs, _ in layers
        }
        self._items = [
            (
                weights[inputs, outputs],
                torch.randn(rows, inputs, device=device),
                torch.randn(rows, outputs, device=device),
                learns_inputs,
            )
            for rows, inputs, outputs, learns_inputs in layers
        ]

    def forward(self) -> None:
        """The products of inference."""
        for weight, inputs, _, _ in self._items:
            torch.mm(inputs, weight.t())

    def forward_and_backward(self) -> None:
        """The products of training: also the gradients of the inputs and of the weights."""
        for weight, inputs, gradients, learns_inputs in self._items:
            torch.mm(inputs, weight.t())
            if learns_inputs:
                torch.mm(gradients, weight)
            torch.mm(gradients.t(), inputs)
