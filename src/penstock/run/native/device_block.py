"""A block that is one closed loop on a CUDA device: a Triton program for each row.

Whatever of it is on the host, a counter say, is brought to the device, and results that belong on
the host are brought back. A loop that Triton does not compile is run by torch calls, which leave
out rows that are done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TypeVar

import torch

from penstock.ir.types import TensorType
from penstock.run.batched.emit import BatchFunction
from penstock.run.native.block import RowLoopBlock
from penstock.run.native.plain import run_rows
from penstock.run.native.triton_kernels import forward_kernel
from penstock.run.native.triton_launching import TritonCall

log = logging.getLogger("penstock")

Made = TypeVar("Made")


class DeviceLoopBlock(RowLoopBlock):
    """A block with a closed loop on a CUDA device in it, and nothing else."""

    def _device(self, position: int, kind: TensorType) -> str:
        """Where a row's own parameters are taken."""
        return str(self.device)

    @cached_property
    def launch(self) -> TritonCall | None:
        """The forward kernel; None where there is none."""
        return compiled_or_none(self._compiled, "Triton")

    def _compiled(self) -> TritonCall:
        return TritonCall(forward_kernel(self.kernels), self.device)

    def function_for(self, arguments: Sequence[torch.Tensor | int]) -> BatchFunction:
        """What to call, as function(rows, *arguments)."""
        return self._run_native if self.launch is not None else self.run_plain

    def run_plain(self, rows: int, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results by torch calls."""
        return run_rows(self, rows, self.brought(arguments))

    def _run_native(self, rows: int, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.launch is None:
            return self.run_plain(rows, *arguments)
        results = self.new_results(rows)
        self.launch(rows, [*self.brought(arguments), *results])
        return self.returned(results)

    def brought(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Arguments on the device, as kernels take them."""
        return [argument.to(self.device).contiguous() for argument in arguments]

    def returned(self, results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Results where they belong."""
        return tuple(made.to(kind.device) for made, kind in zip(results, self.kinds, strict=True))


def compiled_or_none(make: Callable[[], Made], maker: str) -> Made | None:
    """What is made, or None and a line in the log where that fails."""
    try:
        return make()
    except Exception as problem:  # compilers and the driver raise whatever they like
        _say_what_failed(maker, f"{type(problem).__name__}: {problem}".splitlines()[0])
        return None


@lru_cache(maxsize=8)
def _say_what_failed(maker: str, problem: str) -> None:
    log.warning("a loop on a CUDA device runs by torch calls, without %s: %s", maker, problem)
