"""The training form of a closed loop: a forward kernel that leaves a tape, and an adjoint kernel.

Saved are where the frames of each row begin and how many there are, the tape itself, which belongs
to no row, and the operands that the adjoint reads. Whether an operand of a row is reached can
depend on how the row ran: a backward half then says for which rows its gradients count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.autodiff.halves import Saved
from penstock.autodiff.joint import Backward, Pattern
from penstock.run.native.adjoint import Presence
from penstock.run.native.block import NativeCall, RowLoopBlock, as_array
from penstock.run.native.compiling import source_of
from penstock.run.native.printing import FACT, FULL, ROW
from penstock.run.native.training import TrainingKernels

#: Frames on a new tape, and numbers on a new stack.
ROOM = 1024


def backward_of_loop(
    run: Callable[..., list[torch.Tensor | None]],
    saved: int,
    uniforms: Sequence[int],
    reached: Sequence[Presence],
    source: str,
) -> Backward:
    """The backward half of a loop, which gives the gradients of its operands and then, for those
    that may be reached or not, which rows have them.
    """
    count = len(reached)
    return Backward(
        run,  # type: ignore[arg-type]
        tuple(range(saved)),
        tuple(uniforms),
        tuple(None if p is Presence.NEVER else k for k, p in enumerate(reached)),
        source,
        tuple(count + k if p is Presence.MAYBE else None for k, p in enumerate(reached)),
    )


class RowLoopForm:
    """A closed loop that can be differentiated in some of its operands."""

    def __init__(
        self, block: RowLoopBlock, operands: Sequence[int], results: Sequence[int]
    ) -> None:
        self.block = block
        self.kernels = TrainingKernels(block.kernels, tuple(operands), tuple(results))
        self.output_count = len(block.block.results)
        self.backwards: dict[Pattern, Backward] = {}
        self._forward = NativeCall(self.kernels.forward())
        inputs = block.inputs
        self._rows = [k for k in self.kernels.read if inputs[k].kind == "row"]
        self._uniforms = [k for k in self.kernels.read if inputs[k].kind != "row"]
        tapes = [Saved(("tape", dtype), None, 0) for dtype in self.kernels.tapes]
        index = [Saved(("index", name), 0, 1) for name in ("starts", "trips")]
        self.saved = [*index, *tapes, *(Saved(("input", k), 0, 1) for k in self._rows)]
        #: How long the next tape is: a little longer than the last had to be.
        self._room = ROOM
        #: How long stacks are: as long as any had to be.
        self._stack = ROOM

    def sizes(self, arguments: Sequence[torch.Tensor | int]) -> tuple[int, ...]:
        """Nothing in native code is of a dynamic size."""
        return ()

    def forward(self, rows: int, *given: Any) -> tuple[torch.Tensor, ...]:
        """The results, and what to save."""
        results = self.block.new_results(rows)
        starts, trips = (torch.empty(rows, dtype=torch.int64) for _ in range(2))
        ends = [*map(as_array, given), *map(as_array, results)]
        index = [as_array(starts), as_array(trips)]
        room = self._room
        tapes = self._new_tapes(room)
        first = position = 0
        while True:
            arrays = [position, room, *index, *map(as_array, tapes), *ends]
            status, report = self._forward(rows, arrays, first)
            position = int(report[FACT])
            if status != FULL:
                break
            first, room = int(report[ROW]), room * 2
            longer = self._new_tapes(room)
            for old, new in zip(tapes, longer, strict=True):
                new[: len(old)] = old
            tapes = longer
        self._room = max(ROOM, position + position // 4)
        return (*results, starts, trips, *tapes, *(given[k] for k in self._rows))

    def _new_tapes(self, room: int) -> list[torch.Tensor]:
        return [
            torch.empty(room * count, dtype=getattr(torch, dtype))
            for dtype, count in self.kernels.tapes.items()
        ]

    def backward(self, pattern: Pattern) -> Backward:
        """The backward half for these results having cotangents."""
        if pattern not in self.backwards:
            self.backwards[pattern] = self._build(pattern)
        return self.backwards[pattern]

    def _build(self, pattern: Pattern) -> Backward:
        kernel, reached = self.kernels.backward(pattern)
        native = NativeCall(kernel)

        def run(rows: int, *given: Any) -> list[torch.Tensor | None]:
            return self._run_backward(native, reached, rows, given)

        return backward_of_loop(run, len(self.saved), self._uniforms, reached, source_of(kernel))

    def _run_backward(
        self, native: NativeCall, reached: Sequence[Presence], rows: int, given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The gradients of operands, then for which rows they count."""
        tapes = 2 + len(self.kernels.tapes)
        read = dict(zip((*self._rows, *self._uniforms), given[tapes:]))
        cotangents = given[tapes + len(read) :]
        grads, masks = self._new_gradients(rows)
        before = [as_array(item) for item in given[:tapes]]
        after = [read[k] for k in self.kernels.read]
        after = [as_array(item) for item in (*after, *cotangents, *grads, *masks)]
        first = 0
        while True:
            stacks = [
                as_array(torch.empty(self._stack, dtype=getattr(torch, dtype)))
                for dtype in self.kernels.stacks
            ]
            status, report = native(rows, [*before, *stacks, *after], first)
            if status != FULL:
                break
            first, self._stack = int(report[ROW]), self._stack * 2
        return self._finished(grads, masks, reached)

    def _new_gradients(self, rows: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        grads, masks = [], []
        for k in self.kernels.operands:
            spec = self.block.inputs[k]
            is_row = spec.kind == "row"
            shape = (rows, *spec.shape) if is_row else spec.shape
            dtype = getattr(torch, self.kernels.gradient_dtype(k))
            grads.append(torch.zeros(shape, dtype=dtype))  # type: ignore[arg-type]
            masks.append(torch.zeros(rows if is_row else 1, dtype=torch.bool))
        return grads, masks

    def _finished(
        self,
        grads: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
        reached: Sequence[Presence],
    ) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for k, grad, mask, presence in zip(self.kernels.operands, grads, masks, reached):
            is_uniform = self.block.inputs[k].kind != "row"
            if is_uniform and presence is Presence.MAYBE and not bool(mask):
                found.append(None)
            else:
                found.append(grad.to(self.block.inputs[k].torch_dtype))
        return [*found, *masks]
