"""Whole functions over the rows of a launch: what is common to all of them, and the forward one.

A kernel goes through rows from `first` on and stores what a row gives when the row is done, so that
it can stop in a row that needs more room and be called again from there. It returns a status and
leaves the row in its report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.ir.program import Source
from penstock.run.native.analysis import defined
from penstock.run.native.printing import DONE, Printer
from penstock.run.native.scalars import ScalarLoop, Variable

#: Scalar operations between two pulses of a kernel, about: some milliseconds.
PULSE = 1 << 23


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array, or a whole number where `dtype` is None, that a kernel takes."""

    name: str
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """The text of a kernel, and what it takes."""

    lines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    #: How many iterations pass between two pulses.
    pulse: int
    #: The user's lines that a report refers to.
    sources: tuple[Source | None, ...] = ()


HEAD = (Parameter("first", None), Parameter("rows", None), Parameter("report", "int64"))


def make_kernel(loop: ScalarLoop, parameters: Sequence[Parameter], printer: Printer) -> Kernel:
    """What was printed, as a kernel."""
    operations = sum(1 for _ in defined([loop.repeat]))
    sources = tuple(printer.sources)
    return Kernel(tuple(printer.lines), (*HEAD, *parameters), PULSE // (operations + 1), sources)


def place_of(elements: Sequence[Variable], place: int, is_row: bool) -> str:
    """Where an element of a value is in its array."""
    if not is_row:
        return f"{place}"
    return "row" if len(elements) == 1 else f"row * {len(elements)} + {place}"


@dataclass(frozen=True)
class Arguments:
    """The arguments of a launch: their elements, dtypes, and whether rows have their own."""

    elements: tuple[tuple[Variable, ...], ...]
    dtypes: tuple[str, ...]
    is_row: tuple[bool, ...]

    def load(self, printer: Printer, chosen: Sequence[int], *, by_row: bool) -> None:
        """Print how the chosen arguments are read: those of rows, or those of all."""
        for k in chosen:
            if self.is_row[k] is by_row:
                for place, variable in enumerate(self.elements[k]):
                    source = printer.load(f"a{k}", place_of(self.elements[k], place, by_row))
                    printer.add(f"{variable.name} = {source}")


@dataclass(frozen=True)
class LoopKernels:
    """The kernels of one loop, for the results that are asked for."""

    loop: ScalarLoop
    arguments: Arguments
    #: For each result the output of the loop that it is.
    results: tuple[int, ...]
    #: The dtype of each result.
    dtypes: tuple[str, ...]

    def forward(self) -> Kernel:
        """(arguments, results): all rows."""
        printer = Printer()
        self.begin(printer, range(len(self.arguments.elements)))
        with printer.indented("for row in range(first, rows):"):
            self.row(printer)
        printer.add(f"return {DONE}")
        return make_kernel(self.loop, (*self.given(), *self.made()), printer)

    def begin(self, printer: Printer, chosen: Sequence[int]) -> None:
        """Print what comes before the rows."""
        printer.add("left = PULSE")
        self.arguments.load(printer, chosen, by_row=False)

    def row(self, printer: Printer) -> None:
        """Print what is done for a row."""
        every = range(len(self.arguments.elements))
        self.arguments.load(printer, every, by_row=True)
        printer.all([self.loop.repeat])
        for k, output in enumerate(self.results):
            elements = self.loop.outputs[output]
            for place, variable in enumerate(elements):
                printer.store(f"o{k}", place_of(elements, place, True), variable.name)

    def given(self) -> list[Parameter]:
        """The arguments of a launch."""
        return [Parameter(f"a{k}", dtype) for k, dtype in enumerate(self.arguments.dtypes)]

    def made(self) -> list[Parameter]:
        """The results of a launch."""
        return [Parameter(f"o{k}", dtype) for k, dtype in enumerate(self.dtypes)]
