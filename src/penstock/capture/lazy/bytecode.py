"""Reads the bytecode of a function and tells what it reads, what it calls, and whether it writes.

Every instruction that can be reached is run once on what is known of values (`seen`), until nothing
new is found. An instruction that is not in the table, of whatever version of Python, ends the
analysis with a reason: what is not understood is not pure. Exception handlers are not followed;
code that catches exceptions is refused.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType

from penstock.capture.lazy.seen import (
    ARGUMENT,
    COMPUTED,
    SELF,
    Path,
    Seen,
    join,
    outside,
)

#: Flags of code objects that run in pieces.
_IN_PIECES = 0x20 | 0x80 | 0x200


#: Functions inside each other, beyond which one is taken to call itself.
MOST_NESTED = 10


class NotUnderstood(Exception):
    """The analysis ends here, with a reason in words."""


@dataclass(slots=True)
class Findings:
    """What a function was found to do."""

    #: Paths whose values it reads, and paths that it calls.
    reads: set[Path] = field(default_factory=set)
    calls: set[Path] = field(default_factory=set)
    #: Paths whose results it enters with `with`.
    contexts: set[Path] = field(default_factory=set)
    #: Paths whose results it changes in place.
    makers: set[Path] = field(default_factory=set)
    #: How many functions defined inside each other are being read.
    depth: int = 0
    #: The line at which each path was first met.
    lines: dict[Path, str] = field(default_factory=dict)
    #: Why it is not pure; None where nothing speaks against it.
    reason: str | None = None

    def read(self, paths: frozenset[Path], line: str) -> None:
        """Values that are used."""
        self._meet(self.reads, paths, line)

    def call(self, paths: frozenset[Path], line: str) -> None:
        """Values that are called."""
        self._meet(self.calls, paths, line)

    def _meet(self, found: set[Path], paths: frozenset[Path], line: str) -> None:
        found.update(paths)
        for path in paths:
            self.lines.setdefault(path, line)


@dataclass(slots=True)
class Frame:
    """The stack and the locals at one instruction."""

    stack: list[Seen]
    names: dict[str, Seen]

    def copy(self) -> Frame:
        return Frame(list(self.stack), dict(self.names))

    def merge(self, other: Frame) -> bool:
        """Take in another way to get here; whether anything is new."""
        if len(self.stack) != len(other.stack):
            raise NotUnderstood("its bytecode is not understood")
        stack = [join(*pair) for pair in zip(self.stack, other.stack)]
        names = {
            name: join(self.names[name], other.names[name])
            for name in self.names.keys() & other.names.keys()
        }
        for name in self.names.keys() ^ other.names.keys():
            names[name] = self.names.get(name) or other.names[name]
        is_new = stack != self.stack or names != self.names
        self.stack, self.names = stack, names
        return is_new


@lru_cache(maxsize=4096)
def find_effects(code: CodeType, has_owner: bool) -> Findings:
    """What a function of this code does; with an owner its first parameter is `self`."""
    findings = Findings()
    parameters = _parameters(code)
    names = dict.fromkeys(parameters, ARGUMENT)
    if has_owner:
        if not code.co_argcount:
            findings.reason = "it has no parameter for self"
            return findings
        names[parameters[0]] = outside(SELF)
    try:
        run_code(code, names, {}, findings)
    except NotUnderstood as problem:
        findings.reason = str(problem)
    except (LookupError, TypeError, AttributeError) as error:
        findings.reason = f"its bytecode is not understood ({error})"
    return findings


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


def run_nested(
    code: CodeType, arguments: Sequence[Seen], around: dict[str, Seen], findings: Findings
) -> None:
    """The same for code defined inside a function, called with these arguments."""
    parameters = _parameters(code)
    names = dict.fromkeys(parameters, ARGUMENT)
    names |= dict(zip(parameters, arguments, strict=False))
    if findings.depth > MOST_NESTED:
        raise NotUnderstood(f"it has a function that calls itself at {place(code, 1)}")
    findings.depth += 1
    run_code(code, names, around, findings)
    findings.depth -= 1


def run_code(
    code: CodeType, names: dict[str, Seen], around: dict[str, Seen], findings: Findings
) -> None:
    """Run every reachable instruction; `around` are the variables of an enclosing function."""
    is_generator_expression = code.co_name == "<genexpr>"
    if code.co_flags & _IN_PIECES and not is_generator_expression:
        raise NotUnderstood(f"it is a generator or coroutine at {place(code, code.co_firstlineno)}")
    Run(code, around, findings).run(names)


class Run:
    """One analysis of one code object."""

    def __init__(self, code: CodeType, around: dict[str, Seen], findings: Findings) -> None:
        self.code, self.around, self.findings = code, around, findings
        self.instructions = list(dis.get_instructions(code))
        self._positions = {ins.offset: k for k, ins in enumerate(self.instructions)}
        self._frames: dict[int, Frame] = {}
        self._waiting: list[int] = []
        self.frame = Frame([], {})
        self.position = 0
        self._line = code.co_firstlineno

    def run(self, names: dict[str, Seen]) -> None:
        """Until nothing new is found."""
        from penstock.capture.lazy.instructions import carry_out

        self._refuse_handlers()
        self._go(0, Frame([], dict(names)))
        while self._waiting:
            position = self._waiting.pop()
            self.frame = self._frames[position].copy()
            is_open = True
            while is_open:
                self.position = position
                self._find_line(self.instructions[position])
                is_open = carry_out(self, self.instructions[position])
                position += 1
                if is_open and position in self._frames:
                    self._go(position, self.frame)
                    is_open = False

    def jump(self, offset: int) -> None:
        """The instruction at that offset may come next, with the frame as it is."""
        self._go(self._positions[offset], self.frame.copy())

    def jump_out_of_loop(self, offset: int) -> None:
        """The same for a loop that ends: what cleans up after it has been done."""
        position = self._positions[offset]
        if self.instructions[position].opname == "END_FOR":
            position += 1
            if sys.version_info >= (3, 13) and self.instructions[position].opname == "POP_TOP":
                position += 1
        self._go(position, self.frame.copy())

    def _go(self, position: int, frame: Frame) -> None:
        known = self._frames.get(position)
        if known is None:
            self._frames[position] = frame.copy()
            self._waiting.append(position)
        elif known.merge(frame):
            self._waiting.append(position)

    def _refuse_handlers(self) -> None:
        for ins, following in zip(self.instructions, self.instructions[1:]):
            self._find_line(ins)
            if ins.opname == "PUSH_EXC_INFO" and following.opname != "WITH_EXCEPT_START":
                raise self.refused("catches exceptions")

    def _find_line(self, instruction: dis.Instruction) -> None:
        positions = instruction.positions
        if positions is not None and positions.lineno is not None:
            self._line = positions.lineno

    # What instructions do to the stack

    @property
    def line(self) -> str:
        """The line of the instruction at work, such as `model.py:12`."""
        return place(self.code, self._line)

    def refused(self, what: str) -> NotUnderstood:
        """The end of the analysis."""
        return NotUnderstood(f"it {what} at {self.line}")

    def push(self, *values: Seen) -> None:
        """Put values on the stack."""
        self.frame.stack.extend(values)

    def pop(self) -> Seen:
        """Take a value from the stack, without using it."""
        return self.frame.stack.pop()

    def use(self, count: int = 1) -> None:
        """Take values from the stack, and use them as values."""
        for _ in range(count):
            self.note_use(self.pop())

    def note_use(self, value: Seen) -> None:
        """A value is handed on: what it is now counts."""
        if value.kind == "outside":
            self.findings.read(value.paths, self.line)
        elif value.kind == "among":
            self.findings.read(value.step(("any", "")), self.line)
        elif value.kind == "method" and value.base is not None:
            raise self.refused(f"hands on the method {value.name}")
        elif value.kind == "function" and value.code is not None:
            run_nested(value.code, (), {**self.around, **self.frame.names}, self.findings)

    def note_change(self, value: Seen) -> None:
        """A value of the function's own is changed in place."""
        if value.kind == "computed":
            self.findings.makers.update(value.paths)

    def compute(self, count: int) -> None:
        """Use values and put a result in their place."""
        self.use(count)
        self.push(COMPUTED)


def place(code: CodeType, line: int) -> str:
    """A line of the code, as a user would look it up."""
    return f"{code.co_filename.removeprefix(os.getcwd() + os.sep)}:{line}"
