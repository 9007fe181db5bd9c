"""A block that is one closed loop: launched as native code, all rows in one call.

Under autograd, which cannot see into native code, the loop runs as torch calls instead: gradients
of gradients are found that way. An error of a row is the one that the planner would raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from penstock.calls.autocast import OFF, Autocast
from penstock.faults import division_by_zero
from penstock.ir.graph import Node
from penstock.ir.program import RowLoop
from penstock.ir.types import TensorType
from penstock.passes.row_loops import device_of_loop
from penstock.plan.faults import HostOperationError
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import Argument, Executed, Failure, RunnableBlock
from penstock.run.native.compiling import compile_kernel
from penstock.run.native.kernels import Arguments, Kernel, LoopKernels
from penstock.run.native.plain import PlainRows, run_rows
from penstock.run.native.printing import DIVIDED_BY_ZERO, FACT, INTERRUPTED, LINE, REPORT, ROW
from penstock.run.native.scalars import take_apart
from penstock.run.sharing import Sharing


class RowLoopBlock(RunnableBlock):
    """A block with a closed loop in it, and nothing else."""

    def __init__(
        self, node: Node, autocast: Autocast = OFF, default_dtype: str = "float32"
    ) -> None:
        super().__init__(node, autocast)
        (self.step,) = self.block.nodes
        assert isinstance(self.step.operation, RowLoop)
        self.loop: RowLoop = self.step.operation
        self.default_dtype = default_dtype
        #: Where the loop runs.
        self.device = torch.device(device_of_loop(self.block))

    @cached_property
    def kernels(self) -> LoopKernels:
        """The loop on scalars."""
        places = {value: k for k, value in enumerate(self.block.parameters)}
        arguments = [places[value] for value in self.step.inputs]
        loop = take_apart(self.loop, arguments, self.default_dtype)
        dtypes = tuple(spec.dtype for spec in self.inputs)
        is_row = tuple(spec.kind == "row" for spec in self.inputs)
        results = tuple(self.step.outputs.index(value) for value in self.block.results)
        made = tuple(kind.dtype for kind in self.kinds)
        return LoopKernels(loop, Arguments(loop.inputs, dtypes, is_row), results, made)

    @cached_property
    def kinds(self) -> list[TensorType]:
        """The type of each result for one row; sizes are static."""
        kinds = [value.type for value in self.block.results]
        return [kind for kind in kinds if isinstance(kind, TensorType)]

    def output_shapes(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each result for one instance."""
        return tuple(kind.shape for kind in self.kinds)  # type: ignore[misc]

    @cached_property
    def native(self) -> NativeCall:
        """The forward kernel."""
        return NativeCall(self.kernels.forward())

    @cached_property
    def sharing(self) -> Sharing:
        """Rows of a loop are run by themselves anyway."""
        return Sharing(self.block, self.inputs, may_share=False)

    def plain_function(self) -> None:
        """There is none: native code is compiled already."""

    def function_for(self, arguments: Sequence[torch.Tensor | int]) -> BatchFunction:
        """What to call, as function(rows, *arguments)."""
        return self._run_native

    def run(self, rows: int, arguments: Sequence[torch.Tensor | int]) -> Sequence[torch.Tensor]:
        """The results for all rows of a launch."""
        tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return run_rows(self, rows, tensors)
        return self._run_native(rows, *arguments)

    def failure(self, arguments: Sequence[Argument]) -> Failure | None:
        """Not known: what ends a loop from outside may have ended one that does not end."""
        return None

    def executed(self, arguments: Sequence[Argument]) -> tuple[list[Executed], list[Argument]]:
        """The torch calls of all iterations for one instance, and the results."""
        rows = PlainRows(self.device, remembers=True)
        known = dict(zip(self.block.parameters, arguments, strict=True))
        outputs = rows.row(self.loop.body, [known[value] for value in self.step.inputs])
        made = dict(zip(self.step.outputs, outputs, strict=True))
        calls = [Executed(*each) for each in rows.calls]
        return calls, [made[value] for value in self.block.results]

    def _run_native(self, rows: int, *arguments: Any) -> tuple[torch.Tensor, ...]:
        results = self.new_results(rows)
        self.native(rows, [*map(as_array, arguments), *map(as_array, results)])
        return results

    def new_results(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Room for the results of a launch."""
        device, kinds = self.device, zip(self._shapes, self._dtypes, strict=True)
        return tuple(
            [torch.empty((rows, *shape), dtype=dtype, device=device) for shape, dtype in kinds]
        )

    @cached_property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.output_shapes(())

    @cached_property
    def _dtypes(self) -> list[torch.dtype]:
        return [getattr(torch, kind.dtype) for kind in self.kinds]


def as_array(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor in a row, for a kernel."""
    array: np.ndarray[Any, Any] = values.detach().contiguous().view(-1).numpy()
    return array


class NativeCall:
    """A kernel, compiled when first called, and what becomes of its reports."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @cached_property
    def function(self) -> Callable[..., int]:
        """The compiled kernel."""
        return compile_kernel(self.kernel)

    def __call__(self, rows: int, arguments: Sequence[Any], first: int = 0) -> tuple[int, Any]:
        """Run rows from `first` on: the status and the report of a kernel that has not failed."""
        report = np.zeros(REPORT, np.int64)
        status = self.function(first, rows, report, *arguments)
        if status == INTERRUPTED:
            from penstock.run.native.pulse import raise_caught

            raise_caught(report)
        if status == DIVIDED_BY_ZERO:
            fault = division_by_zero(int(report[FACT]))
            source = self.kernel.sources[report[LINE]]
            raise HostOperationError(report[ROW : ROW + 1], fault, source)
        return status, report
