"""Gradients of captures: those of uniform values, taken back through what was computed of captures
alone.

Uniform values are few and computed once per call, so their part of the graph is simply built again
under autograd.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from penstock.autodiff.call import DifferentiableCall
from penstock.autodiff.gradients import add_gradients
from penstock.autodiff.taped_run import TapedRun
from penstock.autodiff.versions import check_version, version_of
from penstock.calls.autocast import autocast_as
from penstock.calls.replay import call
from penstock.ir.program import Captured, TorchCall


class UniformGraph:
    """Uniform values computed again under autograd, from given captures.

    A capture that was changed since the forward run is an error where a derivative reads it, or
    what was computed of it: torch may have saved the latter, here it would be another value.
    """

    def __init__(self, run: TapedRun, captures: Mapping[int, torch.Tensor]) -> None:
        self.run = run
        self.captures = captures
        self.values: dict[int, torch.Tensor] = {}
        #: Values that are not those of the forward run, each with the capture that was changed.
        self._stale: dict[int, int] = {}

    def value(self, number: int) -> torch.Tensor:
        """The value of a uniform wire."""
        if number not in self.values:
            self.values[number] = self._find(number)
        return self.values[number]

    def _find(self, number: int) -> torch.Tensor:
        uniform = self.run.uniform_nodes[number]
        operation = uniform.node.operation
        if isinstance(operation, TorchCall):
            return self._call(number, uniform, operation)
        original = self.run.uniform(number)
        if self.run.versions.get(number, version_of(original)) != version_of(original):
            self._stale[number] = number
        if isinstance(operation, Captured):
            return self.captures.get(operation.index, original)
        return original

    def _call(self, number: int, uniform: Any, operation: TorchCall) -> torch.Tensor:
        operands = {wire.number: self.value(wire.number) for wire in uniform.inputs}
        given = [operands[wire.number] for wire in uniform.inputs]
        changed = [self._stale[wire] for wire in operands if wire in self._stale]
        if not changed:
            return self._result(operation, given, uniform.output)
        self._stale[number] = changed[0]
        kept = {_memory(value) for wire, value in operands.items() if wire not in self._stale}
        with torch.autograd.graph.saved_tensors_hooks(partial(self._save, changed[0], kept), _same):
            return self._result(operation, given, uniform.output)

    def _result(self, operation: TorchCall, given: list[torch.Tensor], output: int) -> torch.Tensor:
        found: torch.Tensor = call(operation, given)[output]
        return found

    def _save(self, changed: int, kept: set[int], saved: torch.Tensor) -> torch.Tensor:
        if _memory(saved) not in kept:
            check_version(self.run.uniform(changed), self.run.versions[changed])
        return saved


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same(saved: torch.Tensor) -> torch.Tensor:
    return saved


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
