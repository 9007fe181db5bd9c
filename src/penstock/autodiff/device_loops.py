"""The training form of a closed loop on a CUDA device: counted, taped, and reversed.

The first kernel gives the results and how many iterations each row makes, so that the tape is as
long as it must be; the second leaves the tape. Saved are the same things as on the CPU, and where
loops are nested how much room the adjoint of a row needs for what inner loops leave for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.autodiff.halves import Saved
from penstock.autodiff.joint import Backward, Pattern
from penstock.autodiff.row_loops import backward_of_loop
from penstock.ir.types import TensorType
from penstock.run.native.adjoint import Presence
from penstock.run.native.device_block import DeviceLoopBlock
from penstock.run.native.triton_compiling import source_of
from penstock.run.native.triton_kernels import TritonTrainingKernels
from penstock.run.native.triton_launching import TritonCall


class DeviceLoopForm:
    """A closed loop on a device that can be differentiated in some of its operands."""

    def __init__(
        self, block: DeviceLoopBlock, operands: Sequence[int], results: Sequence[int]
    ) -> None:
        self.block = block
        self.device = block.device
        self.kernels = TritonTrainingKernels(block.kernels, tuple(operands), tuple(results))
        self.output_count = len(block.block.results)
        self._counting = TritonCall(self.kernels.counting(), self.device)
        is_taped = bool(self.kernels.tapes)
        self._taping = TritonCall(self.kernels.taping(), self.device) if is_taped else None
        inputs = block.inputs
        self._rows = [k for k in self.kernels.read if inputs[k].kind == "row"]
        self._uniforms = [k for k in self.kernels.read if inputs[k].kind != "row"]
        self._index = ["starts", "trips", *(["most"] if self.kernels.stacks else [])]
        tapes = [Saved(("tape", dtype), None, 0) for dtype in self.kernels.tapes]
        index = [Saved(("index", name), 0, 1) for name in self._index]
        self.saved = [*index, *tapes, *(Saved(("input", k), 0, 1) for k in self._rows)]
        everything = tuple(results)
        self.backwards: dict[Pattern, Backward] = {everything: self._build(everything)}

    def sizes(self, arguments: Sequence[torch.Tensor | int]) -> tuple[int, ...]:
        """Nothing in native code is of a dynamic size."""
        return ()

    def forward(self, rows: int, *given: Any) -> tuple[torch.Tensor, ...]:
        """The results, and what to save."""
        arguments = self.block.brought([argument.detach() for argument in given])
        results = self.block.new_results(rows)
        counted = [self._empty(rows, "int64") for _ in self._index[1:]]
        self._counting(rows, [*counted, *arguments, *results])
        trips = counted[0]
        starts, total = _laid_out(trips)
        tapes = [self._empty(total * size, dtype) for dtype, size in self.kernels.tapes.items()]
        if self._taping is not None:
            self._taping(rows, [starts, *tapes, *arguments])
        kept = [arguments[k] for k in self._rows]
        return (*self.block.returned(results), starts, *counted, *tapes, *kept)

    def _empty(self, count: int, dtype: str) -> torch.Tensor:
        return torch.empty(count, dtype=getattr(torch, dtype), device=self.device)

    def backward(self, pattern: Pattern) -> Backward:
        """The backward half for these results having cotangents."""
        if pattern not in self.backwards:
            self.backwards[pattern] = self._build(pattern)
        return self.backwards[pattern]

    def _build(self, pattern: Pattern) -> Backward:
        kernel, reached = self.kernels.backward(pattern)
        call = TritonCall(kernel, self.device)

        def run(rows: int, *given: Any) -> list[torch.Tensor | None]:
            return self._run_backward(call, reached, rows, given)

        return backward_of_loop(run, len(self.saved), self._uniforms, reached, source_of(kernel))

    def _run_backward(
        self, call: TritonCall, reached: Sequence[Presence], rows: int, given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The gradients of operands, then for which rows they count."""
        brought = self.block.brought(given)
        index, rest = brought[: len(self._index)], brought[len(self._index) :]
        tapes, rest = rest[: len(self.kernels.tapes)], rest[len(self.kernels.tapes) :]
        read = dict(zip((*self._rows, *self._uniforms), rest))
        cotangents = rest[len(read) :]
        grads, masks = self._new_gradients(rows, reached)
        tops, stacks = self._new_stacks(index)
        after = [*(read[k] for k in self.kernels.read), *cotangents, *grads, *masks]
        call(rows, [*tops, *index[:2], *tapes, *stacks, *after])
        return self._finished(grads, masks, reached)

    def _new_stacks(
        self, index: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Where the stacks of each row begin, and the stacks of all."""
        if not self.kernels.stacks:
            return [], []
        tops, total = _laid_out(index[2])
        sizes = self.kernels.stack_sizes.items()
        return [tops], [self._empty(total * size, dtype) for dtype, size in sizes]

    def _new_gradients(
        self, rows: int, reached: Sequence[Presence]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Room that the kernel fills, where it reaches an operand."""
        grads, masks = [], []
        for k, presence in zip(self.kernels.operands, reached, strict=True):
            spec = self.block.inputs[k]
            sizes = [0] if presence is Presence.NEVER else [rows, *spec.shape]
            grads.append(torch.empty(sizes, dtype=spec.torch_dtype, device=self.device))  # type: ignore[arg-type]
            masks.append(self._empty(rows if presence is Presence.MAYBE else 0, "bool"))
        return grads, masks

    def _finished(
        self,
        grads: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
        reached: Sequence[Presence],
    ) -> list[torch.Tensor | None]:
        """What is for all rows together is summed; where no row is reached there is nothing."""
        found: list[torch.Tensor | None] = []
        for k, grad, mask, presence in zip(self.kernels.operands, grads, masks, reached):
            kind = self.block.node.inputs[k].type
            assert isinstance(kind, TensorType)
            if self.block.inputs[k].kind == "row":
                found.append(grad.to(kind.device))
            elif presence is Presence.NEVER or (mask.numel() and not bool(mask.any())):
                found.append(None)
            else:
                total = grad.sum(0, dtype=torch.float64)
                found.append(total.to(kind.device, grad.dtype))
        return [*found, *masks]


def _laid_out(counts: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where the run of each row begins if they follow each other, and the length of all."""
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return ends - counts, total
