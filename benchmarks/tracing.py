"""Claim: converting a program's Python control flow costs little next to tracing it once.

For ten programs in plain Python: milliseconds to convert the source of the function, to trace it
(helpers are converted there), and until the first result is there, all from scratch. Then what a
call costs when all of that is done: a function of one addition, called and mapped over one
instance, next to the same addition in torch.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch

import penstock as ps
from benchmarks.figures import Figures, rounded
from benchmarks.harness import Comparison
from benchmarks.programs.python_flow import EXAMPLES, Example
from benchmarks.script import run_script
from penstock.conversion.compile import conversion_of, forget_conversions

HEADINGS = ("program", "lines", "convert ms", "trace ms", "first run ms", "first call ms")
CALL_HEADINGS = ("what", "microseconds", "times torch")


def milliseconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def first_call(build: Callable[[], Example]) -> tuple[float, float, float]:
    """Conversion, tracing and the first run of a program that nobody has seen."""
    forget_conversions()
    example = build()
    program = ps.function(example.function)
    convert = milliseconds(lambda: conversion_of(example.function))  # type: ignore[arg-type]
    trace = milliseconds(lambda: program.program(*example.arguments))
    run = milliseconds(lambda: program(*example.arguments))
    return convert, trace, run


def measure_program(name: str, rounds: int) -> tuple[str, ...]:
    """One line of the table."""
    build = EXAMPLES[name]
    times = [first_call(build) for _ in range(rounds)]
    lines = len(inspect.getsource(build().function).splitlines())
    convert, trace, run = (median(column) for column in zip(*times, strict=True))
    shown = (convert, trace, run, convert + trace + run)
    return name, str(lines), *map(rounded, shown)


def measure_calls(rounds: int, calls: int) -> Iterator[tuple[str, ...]]:
    """What a call costs once everything is known."""

    @ps.function
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    x = torch.tensor(2.0)
    candidates: dict[str, Callable[[], Any]] = {
        "x + 1": lambda: x + 1,
        "f(x)": lambda: add(x),
        "f.map([x])": lambda: add.map([x]),
    }
    for call in candidates.values():
        call()
    found = {name: 1e3 * _many(call, rounds, calls) for name, call in candidates.items()}
    for name, microseconds in found.items():
        yield name, rounded(microseconds), rounded(microseconds / found["x + 1"])


def _many(call: Callable[[], Any], rounds: int, calls: int) -> float:
    def repeat() -> None:
        for _ in range(calls):
            call()

    return median(milliseconds(repeat) / calls for _ in range(rounds))


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """The ten programs, and the calls."""
    first_call(EXAMPLES["newton"])
    with torch.no_grad():
        lines = tuple(measure_program(name, options.rounds) for name in options.programs)
        yield Figures("first calls", HEADINGS, lines)
        yield Figures(
            "warm calls", CALL_HEADINGS, tuple(measure_calls(options.rounds, options.calls))
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which programs, and how many calls make one figure."""
    parser.add_argument("--programs", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    parser.add_argument("--calls", type=int, default=200)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tracing", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
