"""Scalar statements as Python text that Numba compiles.

Every value is written with the constructor of its dtype around it, because Numba would compute a
float32 beside a whole number in float64, and int32 in int64. Loops count down a budget between
pulses, so that they can be interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.ir.program import Source
from penstock.passes.row_types import Number
from penstock.run.native.scalars import Assign, Atom, Choose, Literal, Repeat, Statement, Variable

#: Constructors by dtype.
CONSTRUCTORS = {
    "bool": "bool_",
    "int32": "int32",
    "int64": "int64",
    "float32": "float32",
    "float64": "float64",
}

_CONSTRUCTOR = re.compile(r"\bT\(")

#: What a kernel returns; the row is in the report.
DONE, INTERRUPTED, DIVIDED_BY_ZERO, FULL = range(4)
#: Places in the report of a kernel: an exception (three), the row, what else there is to say.
ROW, FACT, LINE, REPORT = 3, 4, 5, 8


@dataclass(slots=True)
class Printer:
    """Lines of one function, and how statements become lines."""

    #: Whether divisors are looked at; not where a computation is repeated.
    checks: bool = True
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    #: The user's lines that a report refers to.
    sources: list[Source | None] = field(default_factory=list)

    # ---- words of the language -------------------------------------------------------------------

    #: How truth values are written.
    YES: ClassVar[str] = "True"
    NO: ClassVar[str] = "False"

    def text_of(self, atom: Atom) -> str:
        """A variable, or a number with its dtype."""
        if isinstance(atom, Variable):
            return atom.name
        return self.number(atom.value, atom.dtype)

    def number(self, value: Number, dtype: str) -> str:
        """A number of a dtype."""
        return self.cast(repr(value), dtype)

    def cast(self, expression: str, dtype: str) -> str:
        """A value as one of a dtype."""
        return f"{CONSTRUCTORS[dtype]}({expression})"

    def expand(self, template: str, computes: str, operands: Sequence[Atom], **names: str) -> str:
        """An expression of the table on these operands."""
        text = _CONSTRUCTOR.sub(f"{CONSTRUCTORS[computes]}(", template)
        return text.format(*map(self.text_of, operands), **names)

    def is_true(self, atom: Atom) -> str:
        """A condition."""
        return self.text_of(atom)

    def load(self, array: str, place: str) -> str:
        """An element of an array."""
        return f"{array}[{place}]"

    def store(self, array: str, place: str, value: str) -> None:
        """Write an element of an array."""
        self.add(f"{array}[{place}] = {value}")

    # ---- lines -----------------------------------------------------------------------------------

    def add(self, line: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Lines under a head; at least `pass`."""
        self.add(head)
        count = len(self.lines)
        self.depth += 1
        yield
        if len(self.lines) == count:
            self.add("pass")
        self.depth -= 1

    def fill(self, variables: Sequence[Variable], atoms: Sequence[Atom]) -> None:
        """Assign at once; a variable may be among what is assigned to others."""
        pairs = [(x, y) for x, y in zip(variables, atoms, strict=True) if x != y]
        if pairs:
            left = ", ".join(variable.name for variable, _ in pairs)
            self.add(f"{left} = {', '.join(self.text_of(atom) for _, atom in pairs)}")

    def all(self, statements: Sequence[Statement]) -> None:
        """Statements in order."""
        for statement in statements:
            match statement:
                case Assign():
                    self.assign(statement)
                case Choose():
                    self.choose(statement)
                case Repeat():
                    self.repeat(statement)

    def assign(self, statement: Assign) -> None:
        """One operation, after a look at its divisor where zero is refused."""
        op, operands = statement.op, statement.operands
        divisor = operands[-1]
        if op.refuses_zero and self.checks and not (isinstance(divisor, Literal) and divisor.value):
            self.refuse_zero(divisor, operands[0])
            self.sources.append(statement.source)
        expression = self.expand(op.expression, statement.computes, operands)
        self.add(f"{statement.target.name} = {self.cast(expression, statement.target.dtype)}")

    def refuse_zero(self, divisor: Atom, dividend: Atom) -> None:
        """End the row with a report where a divisor is zero."""
        with self.indented(f"if {self.text_of(divisor)} == 0:"):
            self.add(f"report[{ROW}], report[{FACT}] = row, {self.text_of(dividend)}")
            self.add(f"report[{LINE}] = {len(self.sources)}")
            self.add(f"return {DIVIDED_BY_ZERO}")

    def choose(self, statement: Choose) -> None:
        """A branch."""
        pairs = zip(statement.arms, statement.results, strict=True)
        (false, second), (true, first) = pairs
        for head, arm, results in (
            (f"if {self.is_true(statement.condition)}:", true, first),
            ("else:", false, second),
        ):
            with self.indented(head):
                self.all(arm)
                self.fill(statement.targets, results)

    def repeat(self, statement: Repeat) -> None:
        """A loop: `trips` counts its iterations."""
        trips = f"trips{statement.number}"
        self.fill(statement.carried, statement.initial)
        self.add(f"{trips} = 0")
        with self.indented("while True:"):
            self.all(statement.test)
            self.add(f"if not {self.text_of(statement.predicate)}:")
            self.add("    break")
            if statement.maximum is not None:
                self.add(f"if {trips} >= {statement.maximum}:")
                self.add("    break")
            self.begin_iteration(statement)
            self.add(f"{trips} += 1")
            self.pulse()
            self.all(statement.body)
            self.fill(statement.carried, statement.following)

    @contextmanager
    def counted(self, number: int) -> Iterator[None]:
        """Lines that are run as often as a loop had iterations."""
        with self.indented(f"for _ in range(trips{number}):"):
            yield

    def begin_iteration(self, statement: Repeat) -> None:
        """Room for what an iteration leaves behind."""

    def pulse(self) -> None:
        """Let Python see to its signals, once in a while."""
        self.add("left -= 1")
        with self.indented("if left < 0:"):
            self.add("left = PULSE")
            self.add("if pulse(report):")
            self.add(f"    return {INTERRUPTED}")
