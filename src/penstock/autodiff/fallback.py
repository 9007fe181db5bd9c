"""The training form of a block that has no joint trace: backward runs the block again under torch's
autograd.

Blocks whose rows run one by one come here, and those whose derivative cannot be traced without
contents. All operands are saved; nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from penstock.autodiff.halves import Saved
from penstock.autodiff.joint import Backward, Pattern, named_sizes, symbol_names
from penstock.run.batched.inputs import BlockInput


class AutogradForm:
    """A block that torch's autograd differentiates at every launch; used as a `TrainingForm` is."""

    def __init__(
        self,
        batched: Callable[..., tuple[torch.Tensor, ...]],
        inputs: Sequence[BlockInput],
        operands: Sequence[int],
        results: Sequence[int],
        output_count: int,
    ) -> None:
        self.batched = batched
        self.inputs = tuple(inputs)
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.output_count = output_count
        self.symbols = symbol_names(inputs)
        self.rows = [k for k, spec in enumerate(inputs) if spec.kind == "row"]
        self.uniforms = [k for k, spec in enumerate(inputs) if spec.kind == "uniform"]
        self.saved = [Saved(("input", k), 0, 1) for k in self.rows]

    def sizes(self, arguments: Sequence[torch.Tensor | int]) -> tuple[int, ...]:
        """The dynamic sizes of a launch."""
        if not self.symbols:
            return ()
        found = named_sizes(self.inputs, arguments)
        return tuple(found[name] for name in self.symbols)

    def forward(self, rows: int, *given: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """The results, and the operands to save."""
        places = [k for k, spec in enumerate(self.inputs) if spec.kind != "size"]
        tensors = dict(zip(places, given))
        outputs = self.batched(rows, *self._arguments(tensors, given[len(places) :]))
        return (*outputs, *(tensors[k] for k in self.rows))  # type: ignore[arg-type]

    def backward(self, pattern: Pattern) -> Backward:
        """The backward half for these results having cotangents."""
        first, second = len(self.rows), len(self.rows) + len(self.uniforms)

        def run(rows: int, *given: torch.Tensor | int) -> list[torch.Tensor | None]:
            tensors = dict(zip((*self.rows, *self.uniforms), given[:second], strict=True))
            cotangents = given[second : second + len(pattern)]
            return self._differentiate(
                rows, tensors, pattern, cotangents, given[second + len(pattern) :]
            )

        gradients = tuple(range(len(self.operands)))
        return Backward(run, tuple(range(first)), tuple(self.uniforms), gradients, "")  # type: ignore[arg-type]

    def _differentiate(
        self,
        rows: int,
        tensors: dict[int, torch.Tensor | int],
        pattern: Pattern,
        cotangents: Sequence[torch.Tensor | int],
        sizes: Sequence[torch.Tensor | int],
    ) -> list[torch.Tensor | None]:
        for operand in self.operands:
            tensors[operand] = tensors[operand].detach().requires_grad_()  # type: ignore[union-attr]
        with torch.enable_grad():
            outputs = self.batched(rows, *self._arguments(tensors, sizes))
        pairs = [
            (outputs[k], grad)
            for k, grad in zip(pattern, cotangents, strict=True)
            if outputs[k].requires_grad
        ]
        if not pairs:
            return [None] * len(self.operands)
        made, grads = zip(*pairs, strict=True)
        leaves = [tensors[operand] for operand in self.operands]
        return list(torch.autograd.grad(made, leaves, grads, allow_unused=True))  # type: ignore[arg-type]

    def _arguments(
        self, tensors: dict[int, torch.Tensor | int], sizes: Sequence[torch.Tensor | int]
    ) -> list[torch.Tensor | int]:
        named = dict(zip(self.symbols, sizes))
        return [
            named[str(spec.symbol)] if spec.kind == "size" else tensors[k]
            for k, spec in enumerate(self.inputs)
        ]
