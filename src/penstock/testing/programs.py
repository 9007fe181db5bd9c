"""Random programs: what one is, and the two ways to run it that all others are compared with.

`run_plain` follows the syntax with plain Python. `as_function` gives the Python function of the
program's text, ready for `ps.function`. The text is also what a failing test shows.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from penstock.testing.expressions import WEIGHT
from penstock.testing.plain import PlainRun
from penstock.testing.python_source import PythonWriter
from penstock.testing.source import SourceWriter
from penstock.testing.statements import Function

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Program:
    """Functions, and the one among them that is called for every instance."""

    #: The functions that the program calls, each able to call itself and all others.
    functions: tuple[Function, ...]
    entry: Function
    #: The least length of a sequence in the inputs.
    shortest: int = 0

    def __str__(self) -> str:
        writer = SourceWriter()
        for function in self.functions:
            writer.function(function, "@ps.function")
        writer.function(self.entry)
        return "\n".join(writer.lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the text instead of the syntax where hypothesis prints an example."""
        printer.text(f"\n{self}\n")


def run_plain(program: Program, instance: Sequence[Tensor]) -> Any:
    """What the program returns for one instance: a tensor, or a tuple unless there is just one."""
    run = PlainRun((*program.functions, program.entry))
    results = run.call(program.entry.name, instance)
    return results[0] if len(results) == 1 else tuple(results)


def as_function(program: Program) -> Callable[..., Any]:
    """The program's text as a function of one instance, not yet a `ps.function` itself."""
    return _compiled(program, str(program))


def as_python_function(program: Program) -> Callable[..., Any]:
    """The same with plain Python control flow, and plain functions for those it calls."""
    writer = PythonWriter()
    for function in (*program.functions, program.entry):
        writer.function(function)
    return _compiled(program, "\n".join(writer.lines))


def _compiled(program: Program, text: str) -> Callable[..., Any]:
    file = f"<random program {next(_numbers)}>"
    # Tracebacks and everything else that asks for the source of a function look here.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"ps": ps, "torch": torch, "weight": WEIGHT}
    exec(compile(text, file, "exec"), namespace)
    function: Callable[..., Any] = namespace[program.entry.name]
    return function
