"""Whole functions over the rows of a launch: forward, forward with a tape, backward.

A kernel goes through rows from `first` on and stores what a row gives when the row is done, so that
it can stop in a row that needs more room and be called again from there. It returns a status and
leaves the row in its report. What iterations start from is on the tape: for each dtype one array,
each iteration of the outermost loop a frame, the frames of a row in a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.ir.program import Source
from penstock.run.native.adjoint import Adjoint, Presence, RecordingPrinter, by_dtype, is_active
from penstock.run.native.analysis import (
    defined,
    depended_on,
    find_active,
    inner_loops,
    names_of,
)
from penstock.run.native.printing import DONE, FACT, FULL, ROW, Printer
from penstock.run.native.scalars import Repeat, ScalarLoop, Variable

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


def _kernel(loop: ScalarLoop, parameters: Sequence[Parameter], printer: Printer) -> Kernel:
    operations = sum(1 for _ in defined([loop.repeat]))
    sources = tuple(printer.sources)
    return Kernel(tuple(printer.lines), (*HEAD, *parameters), PULSE // (operations + 1), sources)


def _place(array: str, elements: Sequence[Variable], place: int, is_row: bool) -> str:
    """Where an element of a value is in its array."""
    if not is_row:
        return f"{array}[{place}]"
    return f"{array}[row]" if len(elements) == 1 else f"{array}[row * {len(elements)} + {place}]"


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
                    source = _place(f"a{k}", self.elements[k], place, by_row)
                    printer.add(f"{variable.name} = {source}")


class _TapingPrinter(Printer):
    """Prints the outermost loop so that it leaves a frame for each iteration."""

    def __init__(self, frame: Sequence[Variable]) -> None:
        super().__init__()
        self.frame = by_dtype(frame)

    def begin_iteration(self, statement: Repeat) -> None:
        """Write the frame of an iteration."""
        if statement.number != 1:
            return
        with self.indented("if position >= room:"):
            self.add(f"report[{ROW}], report[{FACT}] = row, begin")
            self.add(f"return {FULL}")
        for dtype, variables in self.frame.items():
            for place, variable in enumerate(variables):
                self.add(f"tape_{dtype}[position * {len(variables)} + {place}] = {variable.name}")
        self.add("position += 1")


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
        return _kernel(self.loop, (*self.given(), *self.made()), printer)

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
                printer.add(f"{_place(f'o{k}', elements, place, True)} = {variable.name}")

    def given(self) -> list[Parameter]:
        """The arguments of a launch."""
        return [Parameter(f"a{k}", dtype) for k, dtype in enumerate(self.arguments.dtypes)]

    def made(self) -> list[Parameter]:
        """The results of a launch."""
        return [Parameter(f"o{k}", dtype) for k, dtype in enumerate(self.dtypes)]


@dataclass(frozen=True)
class TrainingKernels:
    """The kernels that gradients of some arguments need, given cotangents of some results."""

    kernels: LoopKernels
    operands: tuple[int, ...]
    #: The results that may have cotangents.
    results: tuple[int, ...]

    @property
    def _loop(self) -> ScalarLoop:
        return self.kernels.loop

    @cached_property
    def active(self) -> set[str]:
        """The variables through which gradients flow."""
        elements = self.kernels.arguments.elements
        wanted = {x.name for operand in self.operands for x in elements[operand]}
        return find_active(self._loop.repeat, wanted)

    @cached_property
    def _inner(self) -> list[Repeat]:
        """The loops inside through which gradients flow."""
        loops = inner_loops(self._loop.repeat.body)
        return [loop for loop in loops if is_active(loop, self.active)]

    @cached_property
    def needed(self) -> set[str]:
        """The values that some backward kernel reads, and what they depend on."""
        adjoint = self._adjoint()
        self._seed(adjoint, self.results)
        adjoint.go_back(self._loop.repeat, lambda printer: None)
        used = adjoint.used.union(*(names_of(loop.carried) for loop in self._inner))
        return depended_on(self._loop.repeat.body, used)

    @cached_property
    def frame(self) -> tuple[Variable, ...]:
        """What an iteration leaves on the tape."""
        return tuple(x for x in self._loop.repeat.carried if x.name in self.needed)

    @cached_property
    def read(self) -> tuple[int, ...]:
        """The arguments that backward reads."""
        elements = self.kernels.arguments.elements
        return tuple(k for k, xs in enumerate(elements) if names_of(xs) & self.needed)

    @property
    def tapes(self) -> dict[str, int]:
        """For each dtype of the tape how many numbers a frame has."""
        return {dtype: len(variables) for dtype, variables in by_dtype(self.frame).items()}

    @property
    def stacks(self) -> list[str]:
        """The dtypes of what inner loops leave for a while."""
        return sorted({x.dtype for loop in self._inner for x in loop.carried})

    def forward(self) -> Kernel:
        """(position, room, starts, trips, tapes, arguments, results)."""
        kernels = self.kernels
        printer = _TapingPrinter(self.frame)
        kernels.begin(printer, range(len(kernels.arguments.elements)))
        with printer.indented("for row in range(first, rows):"):
            printer.add("begin = position")
            kernels.row(printer)
            printer.add("starts[row], trips[row] = begin, trips1")
        printer.add(f"report[{FACT}] = position")
        printer.add(f"return {DONE}")
        head = [Parameter("position", None), Parameter("room", None), *self._index()]
        parameters = (*head, *self._tape(), *kernels.given(), *kernels.made())
        return _kernel(self._loop, parameters, printer)

    def _index(self) -> list[Parameter]:
        return [Parameter("starts", "int64"), Parameter("trips", "int64")]

    def _tape(self) -> list[Parameter]:
        return [Parameter(f"tape_{dtype}", dtype) for dtype in self.tapes]

    # ---- backward --------------------------------------------------------------------------------

    def backward(self, pattern: Sequence[int]) -> tuple[Kernel, list[Presence]]:
        """(starts, trips, tapes, stacks, arguments read, cotangents, gradients, masks), and whether
        each operand is reached.
        """
        adjoint = self._adjoint()
        adjoint.needed = self.needed
        reached = self._print_backward(adjoint, pattern)
        given = self.kernels.arguments
        parameters = [*self._index(), *self._tape()]
        parameters += [Parameter(f"stack_{dtype}", dtype) for dtype in self.stacks]
        parameters += [Parameter(f"a{k}", given.dtypes[k]) for k in self.read]
        parameters += [Parameter(f"c{k}", self.kernels.dtypes[k]) for k in pattern]
        parameters += [Parameter(f"g{k}", self.gradient_dtype(k)) for k in self.operands]
        parameters += [Parameter(f"m{k}", "bool") for k in self.operands]
        return _kernel(self._loop, parameters, adjoint.printer), reached

    def gradient_dtype(self, operand: int) -> str:
        """The dtype in which a gradient is made: sums over rows are in float64."""
        given = self.kernels.arguments
        return given.dtypes[operand] if given.is_row[operand] else "float64"

    def _adjoint(self) -> Adjoint:
        return Adjoint(RecordingPrinter(self.active), self.active)

    def _print_backward(self, adjoint: Adjoint, pattern: Sequence[int]) -> list[Presence]:
        printer, arguments = adjoint.printer, self.kernels.arguments
        self.kernels.begin(printer, self.read)
        with printer.indented("for row in range(first, rows):"):
            arguments.load(printer, self.read, by_row=True)
            for dtype in self.stacks:
                printer.add(f"top_{dtype} = 0")
            self._seed(adjoint, pattern)
            printer.add("trips1 = trips[row]")
            printer.add("position = starts[row] + trips1")
            repeat = self._loop.repeat
            adjoint.go_back(repeat, self._load_frame)
            for variable, initial in zip(repeat.carried, repeat.initial, strict=True):
                adjoint.copy_back(variable, initial)
            reached = [self._store(adjoint, operand) for operand in self.operands]
        printer.add(f"return {DONE}")
        return reached

    def _seed(self, adjoint: Adjoint, pattern: Sequence[int]) -> None:
        """Only the results of the pattern have cotangents."""
        for operand in self.operands:
            for variable in self.kernels.arguments.elements[operand]:
                adjoint.forget(variable)
        for variable in self._loop.repeat.carried:
            adjoint.forget(variable)
        for k in pattern:
            elements = self._loop.outputs[self.kernels.results[k]]
            for place, variable in enumerate(elements):
                source = _place(f"c{k}", elements, place, True)
                adjoint.contribute(variable, source, Presence.ALWAYS, "")

    def _load_frame(self, printer: Printer) -> None:
        printer.add("position -= 1")
        for dtype, variables in by_dtype(self.frame).items():
            for place, variable in enumerate(variables):
                source = f"tape_{dtype}[position * {len(variables)} + {place}]"
                printer.add(f"{variable.name} = {source}")

    def _store(self, adjoint: Adjoint, operand: int) -> Presence:
        """Print how the gradient of an operand is stored, or added to that of all rows."""
        arguments, printer = self.kernels.arguments, adjoint.printer
        elements, is_row = arguments.elements[operand], arguments.is_row[operand]
        states = {adjoint.states.get(x.name, Presence.NEVER) for x in elements}
        if states <= {Presence.NEVER}:
            return Presence.NEVER
        for place, variable in enumerate(elements):
            target = _place(f"g{operand}", elements, place, is_row)
            if is_row:
                printer.add(f"{target} = d_{variable.name}")
            else:
                printer.add(f"{target} += float64(d_{variable.name})")
        if Presence.ALWAYS in states:
            return Presence.ALWAYS
        flag = " or ".join(f"h_{variable.name}" for variable in elements)
        if is_row:
            printer.add(f"m{operand}[row] = {flag}")
        else:
            printer.add(f"m{operand}[0] = m{operand}[0] or {flag}")
        return Presence.MAYBE
