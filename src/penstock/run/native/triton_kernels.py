"""Whole Triton kernels: a program for each row of a launch.

All take `words`, two numbers in memory that host and device share: the host asks rows to end by the
first, a row says by the second that it has failed. Where rows may fail, `lines` and `facts` tell
for each what happened. For gradients a loop is run twice: first its iterations are counted, then
they leave their frames, for each row in a run, exactly as long as it must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from penstock.run.native.adjoint import Adjoint, Presence, by_dtype
from penstock.run.native.analysis import defined
from penstock.run.native.kernels import Kernel, LoopKernels, Parameter, place_of
from penstock.run.native.printing import Printer
from penstock.run.native.training import TrainingKernels
from penstock.run.native.triton_printing import (
    TritonCountingPrinter,
    TritonPrinter,
    TritonRecordingPrinter,
    TritonTapingPrinter,
)

#: Scalar operations between two looks at what the host wants, about: some milliseconds.
PULSE = 1 << 20

WORDS = Parameter("words", "int64")
FAULTS = (Parameter("lines", "int64"), Parameter("facts", "int64"))


def _kernel(kernels: LoopKernels, parameters: Sequence[Parameter], printer: Printer) -> Kernel:
    """What was printed, as a kernel."""
    operations = sum(1 for _ in defined([kernels.loop.repeat]))
    sources = tuple(printer.sources)
    head = (WORDS, *FAULTS) if sources else (WORDS,)
    pulse = PULSE // (operations + 1)
    return Kernel(tuple(printer.lines), (*head, *parameters), pulse, sources)


def _begin(kernels: LoopKernels, printer: TritonPrinter, chosen: Sequence[int]) -> None:
    printer.begin_row()
    kernels.arguments.load(printer, chosen, by_row=False)


def forward_kernel(kernels: LoopKernels) -> Kernel:
    """(arguments, results)."""
    printer = TritonPrinter()
    _begin(kernels, printer, range(len(kernels.arguments.elements)))
    kernels.row(printer)
    return _kernel(kernels, (*kernels.given(), *kernels.made()), printer)


class TritonTrainingKernels(TrainingKernels):
    """The kernels that gradients of some arguments need, given cotangents of some results."""

    @cached_property
    def stack_sizes(self) -> dict[str, int]:
        """For each dtype of the stacks how many numbers a frame has at most."""
        frames = [by_dtype(loop.carried) for loop in self._inner]
        return {dtype: max(len(f.get(dtype, ())) for f in frames) for dtype in self.stacks}

    def counting(self) -> Kernel:
        """(trips, most if there are stacks, arguments, results)."""
        kernels = self.kernels
        printer = TritonCountingPrinter(self.active) if self.stacks else TritonPrinter()
        _begin(kernels, printer, range(len(kernels.arguments.elements)))
        kernels.row(printer)
        printer.store("trips", "row", "trips1")
        counted = [Parameter("trips", "int64")]
        if self.stacks:
            printer.store("most", "row", "most1")
            counted.append(Parameter("most", "int64"))
        return _kernel(kernels, (*counted, *kernels.given(), *kernels.made()), printer)

    def taping(self) -> Kernel:
        """(starts, tapes, arguments)."""
        kernels = self.kernels
        printer = TritonTapingPrinter(self.frame)
        every = range(len(kernels.arguments.elements))
        _begin(kernels, printer, every)
        printer.add(f"position = {printer.load('starts', 'row')}")
        kernels.arguments.load(printer, every, by_row=True)
        printer.all([self._loop.repeat])
        starts = Parameter("starts", "int64")
        return _kernel(kernels, (starts, *self._tape(), *kernels.given()), printer)

    def _adjoint(self) -> Adjoint:
        return Adjoint(TritonRecordingPrinter(self.active), self.active)

    def _kernel(self, parameters: Sequence[Parameter], printer: Printer) -> Kernel:
        return _kernel(self.kernels, parameters, printer)

    def _index(self) -> list[Parameter]:
        tops = [Parameter("tops", "int64")] if self.stacks else []
        return [*tops, *super()._index()]

    def _print_backward(self, adjoint: Adjoint, pattern: Sequence[int]) -> list[Presence]:
        printer = adjoint.printer
        assert isinstance(printer, TritonRecordingPrinter)
        _begin(self.kernels, printer, self.read)
        for dtype, size in self.stack_sizes.items():
            printer.add(f"top_{dtype} = {printer.load('tops', 'row')} * {size}")
        return self._print_row(adjoint, pattern)

    def gradient_dtype(self, operand: int) -> str:
        """The dtype in which a gradient is made; of all rows the host makes the sum."""
        return self.kernels.arguments.dtypes[operand]

    def _store_gradient(self, printer: Printer, operand: int) -> None:
        elements = self.kernels.arguments.elements[operand]
        for place, variable in enumerate(elements):
            printer.store(f"g{operand}", place_of(elements, place, True), f"d_{variable.name}")

    def _store_mask(self, printer: Printer, operand: int, flag: str) -> None:
        printer.store(f"m{operand}", "row", flag)
