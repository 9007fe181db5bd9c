"""Gradients of captures: those of uniform values, taken back through what was computed of captures
alone.

Uniform values are few and computed once per call, so their part of the graph is simply built again
under autograd.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from penstock.autodiff.call import DifferentiableCall
from penstock.autodiff.gradients import add_gradients
from penstock.calls.autocast import autocast_as
from penstock.calls.replay import call
from penstock.ir.program import Captured, TorchCall
from penstock.run.engine import Run


class UniformGraph:
    """Uniform values computed again under autograd, from given captures."""

    def __init__(self, run: Run, captures: Mapping[int, torch.Tensor]) -> None:
        self.run = run
        self.captures = captures
        self.values: dict[int, torch.Tensor] = {}

    def value(self, number: int) -> torch.Tensor:
        """The value of a uniform wire."""
        if number not in self.values:
            uniform = self.run.uniform_nodes[number]
            operation = uniform.node.operation
            if isinstance(operation, Captured) and operation.index in self.captures:
                self.values[number] = self.captures[operation.index]
            elif isinstance(operation, TorchCall):
                operands = [self.value(wire.number) for wire in uniform.inputs]
                self.values[number] = call(operation, operands)[uniform.output]
            else:
                self.values[number] = self.run.uniform(number)
        return self.values[number]


def capture_gradients(
    made: DifferentiableCall, uniform_gradients: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Gradients of captures from those of the uniform values computed of them."""
    found: dict[int, torch.Tensor] = {}
    derived: dict[int, torch.Tensor] = {}
    for number, gradient in uniform_gradients.items():
        operation = made.run.uniform_nodes[number].node.operation
        if isinstance(operation, Captured):
            found[operation.index] = add_gradients(found.get(operation.index), gradient)
        elif isinstance(operation, TorchCall):
            derived[number] = gradient
    for index, gradient in _through_uniforms(made, derived).items():
        found[index] = add_gradients(found.get(index), gradient)
    return found


def _through_uniforms(
    made: DifferentiableCall, derived: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    if not derived:
        return {}
    places = [p.capture for p in made.places if p.capture is not None]
    with torch.enable_grad(), autocast_as(made.executable.autocast):
        leaves = {index: made.captures[index].detach().requires_grad_() for index in places}
        graph = UniformGraph(made.run, leaves)
        pairs = [(graph.value(number), gradient) for number, gradient in derived.items()]
    pairs = [(output, gradient) for output, gradient in pairs if output.requires_grad]
    if not pairs:
        return {}
    outputs, gradients = zip(*pairs, strict=True)
    grads = torch.autograd.grad(outputs, list(leaves.values()), gradients, allow_unused=True)
    found = zip(leaves, grads, strict=True)
    return {index: gradient for index, gradient in found if gradient is not None}
