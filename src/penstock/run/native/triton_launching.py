"""Launches Triton kernels and waits for them, so that Ctrl-C can end a loop that would not.

Python cannot run in a kernel: the host looks at an event again and again, seeing to signals in
between, and where a handler raises it tells the rows to end through memory that both can reach. A
loop on a device is therefore over when its launch returns. The fault of the first row that failed
is raised as on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from penstock.faults import division_by_zero
from penstock.plan.faults import HostOperationError
from penstock.run.capturing import refuse_while_capturing
from penstock.run.native.kernels import Kernel
from penstock.run.native.triton_compiling import Launch, compile_kernel

#: Seconds in which the host does nothing but look, and seconds between two looks after that.
BUSY, PAUSE = 2e-3, 1e-4


class TritonCall:
    """A kernel, compiled when it is made, and what becomes of its faults."""

    def __init__(self, kernel: Kernel, device: torch.device) -> None:
        self.kernel = kernel
        self.device = device
        self._launch: Launch = compile_kernel(kernel, device)
        #: Words that no call uses now: whether rows are to end, and whether one has failed.
        self._words: list[torch.Tensor] = []

    def __call__(self, rows: int, arguments: Sequence[torch.Tensor]) -> None:
        """Run all rows; on return they are done."""
        refuse_while_capturing()
        if not rows:
            return
        words = self._words.pop() if self._words else shared_words()
        faults = self._new_faults(rows)
        self._launch(rows, [words, *faults, *arguments])
        wait(self.device, words)
        if int(words[1]):
            self._raise_first(*faults)
        self._words.append(words)

    def _new_faults(self, rows: int) -> list[torch.Tensor]:
        """For each row the line at which it failed, from 1 on, and the dividend."""
        if not self.kernel.sources:
            return []
        return list(torch.zeros(2, rows, dtype=torch.int64, device=self.device))

    def _raise_first(self, lines: torch.Tensor, facts: torch.Tensor) -> None:
        row = lines.nonzero()[:1, 0].cpu()
        source = self.kernel.sources[int(lines[row]) - 1]
        raise HostOperationError(row.numpy(), division_by_zero(int(facts[row])), source)


def shared_words() -> torch.Tensor:
    """Two numbers that host and device see."""
    return torch.zeros(2, dtype=torch.int64, pin_memory=True)


def wait(device: torch.device, words: torch.Tensor) -> None:
    """Until all that was launched is done; what a signal's handler raises ends the rows first."""
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(device))
    began = time.perf_counter()
    try:
        while not done.query():
            if time.perf_counter() - began > BUSY:
                time.sleep(PAUSE)
    except BaseException:
        words[0] = 1
        done.synchronize()
        raise
