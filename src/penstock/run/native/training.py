"""Kernels for gradients: a forward one that leaves a tape, and one that goes back over it.

What iterations start from is on the tape: for each dtype one array, each iteration of the outermost
loop a frame, the frames of a row in a run. Backward, an iteration is run again from its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.run.native.adjoint import Adjoint, Presence, RecordingPrinter, by_dtype, is_active
from penstock.run.native.analysis import depended_on, find_active, inner_loops, names_of
from penstock.run.native.kernels import Kernel, LoopKernels, Parameter, make_kernel, place_of
from penstock.run.native.printing import DONE, FACT, FULL, ROW, Printer
from penstock.run.native.scalars import Repeat, ScalarLoop, Variable


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
                self.store(f"tape_{dtype}", f"position * {len(variables)} + {place}", variable.name)
        self.add("position += 1")


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
        return make_kernel(self._loop, parameters, printer)

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
        return self._kernel(parameters, adjoint.printer), reached

    def _kernel(self, parameters: Sequence[Parameter], printer: Printer) -> Kernel:
        return make_kernel(self._loop, parameters, printer)

    def gradient_dtype(self, operand: int) -> str:
        """The dtype in which a gradient is made: sums over rows are in float64."""
        given = self.kernels.arguments
        return given.dtypes[operand] if given.is_row[operand] else "float64"

    def _adjoint(self) -> Adjoint:
        return Adjoint(RecordingPrinter(self.active), self.active)

    def _print_backward(self, adjoint: Adjoint, pattern: Sequence[int]) -> list[Presence]:
        printer = adjoint.printer
        self.kernels.begin(printer, self.read)
        with printer.indented("for row in range(first, rows):"):
            for dtype in self.stacks:
                printer.add(f"top_{dtype} = 0")
            reached = self._print_row(adjoint, pattern)
        printer.add(f"return {DONE}")
        return reached

    def _print_row(self, adjoint: Adjoint, pattern: Sequence[int]) -> list[Presence]:
        """What is done for a row; whether each operand is reached."""
        printer, repeat = adjoint.printer, self._loop.repeat
        self.kernels.arguments.load(printer, self.read, by_row=True)
        self._seed(adjoint, pattern)
        printer.add(f"trips1 = {printer.load('trips', 'row')}")
        printer.add(f"position = {printer.load('starts', 'row')} + trips1")
        adjoint.go_back(repeat, self._load_frame)
        for variable, initial in zip(repeat.carried, repeat.initial, strict=True):
            adjoint.copy_back(variable, initial)
        return [self._store(adjoint, operand) for operand in self.operands]

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
                source = adjoint.printer.load(f"c{k}", place_of(elements, place, True))
                adjoint.contribute(variable, source, Presence.ALWAYS, "")

    def _load_frame(self, printer: Printer) -> None:
        printer.add("position -= 1")
        for dtype, variables in by_dtype(self.frame).items():
            for place, variable in enumerate(variables):
                source = printer.load(f"tape_{dtype}", f"position * {len(variables)} + {place}")
                printer.add(f"{variable.name} = {source}")

    def _store(self, adjoint: Adjoint, operand: int) -> Presence:
        """Print how the gradient of an operand is stored, and for which rows it counts."""
        elements = self.kernels.arguments.elements[operand]
        states = {adjoint.states.get(x.name, Presence.NEVER) for x in elements}
        if states <= {Presence.NEVER}:
            return Presence.NEVER
        self._store_gradient(adjoint.printer, operand)
        if Presence.ALWAYS in states:
            return Presence.ALWAYS
        flag = " | ".join(f"h_{variable.name}" for variable in elements)
        self._store_mask(adjoint.printer, operand, flag)
        return Presence.MAYBE

    def _store_gradient(self, printer: Printer, operand: int) -> None:
        """Store the gradient of a row, or add it to that of all rows."""
        arguments = self.kernels.arguments
        elements, is_row = arguments.elements[operand], arguments.is_row[operand]
        for place, variable in enumerate(elements):
            target = printer.load(f"g{operand}", place_of(elements, place, is_row))
            if is_row:
                printer.add(f"{target} = d_{variable.name}")
            else:
                printer.add(f"{target} += float64(d_{variable.name})")

    def _store_mask(self, printer: Printer, operand: int, flag: str) -> None:
        if self.kernels.arguments.is_row[operand]:
            printer.add(f"m{operand}[row] = {flag}")
        else:
            printer.add(f"m{operand}[0] |= {flag}")
