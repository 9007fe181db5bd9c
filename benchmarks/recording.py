"""Claim: recording takes 1.8 us an operator, 3.0 us a torch function and 1.2 us a unit.

Many calls in a row on recorded vectors, inside a `ps.batching` scope: only recording is timed,
never what runs when the scope ends. The last column is the same call on ordinary vectors of the
same width, executed. A fiber is switched away from and back to when its code reads a value; that is
timed without anything to compute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import penstock as ps
from benchmarks.figures import Figures, Spread, rounded
from benchmarks.inside import switch_fibers
from benchmarks.script import run_script

HEADINGS = ("recorded", "us a call", "aim", "executed eagerly, us")


@dataclass(frozen=True)
class Subject:
    """One kind of call."""

    name: str
    call: Callable[[Tensor, Tensor], Any]
    granularity: str = "op"
    #: Microseconds to reach; None where none was set.
    aim: float | None = None


class Gate(nn.Module):
    """Some operations that make sense as one step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """A gated sum."""
        gate = torch.sigmoid(self.first(x) + self.second(y))
        return gate * x + (1 - gate) * y


def subjects(width: int) -> list[Subject]:
    """All kinds of calls."""
    linear, gate = nn.Linear(width, width), Gate(width)

    @ps.unit
    def marked(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x) * y + x

    @ps.function
    def program(x: Tensor, y: Tensor) -> Any:
        return torch.tanh(x) * y + x

    return [
        Subject("operator, two tensors", lambda x, y: x * y, aim=1.8),
        Subject("operator, tensor and number", lambda x, y: x + 2.0, aim=1.8),
        Subject("torch.tanh(x)", lambda x, y: torch.tanh(x), aim=3.0),
        Subject("torch.mul(x, y)", lambda x, y: torch.mul(x, y), aim=3.0),
        Subject("torch.cat((x, y))", lambda x, y: torch.cat((x, y))),
        Subject("functional.softmax(x, dim=0)", lambda x, y: functional.softmax(x, dim=0)),
        Subject("x.view(1, -1)", lambda x, y: x.view(1, -1)),
        Subject("x[0]", lambda x, y: x[0]),
        Subject("linear(x), by operation", lambda x, y: linear(x)),
        Subject("linear(x), by module", lambda x, y: linear(x), "module"),
        Subject("a module of 7 operations", lambda x, y: gate(x, y), "auto", aim=1.2),
        Subject("a function marked @ps.unit", lambda x, y: marked(x, y), "auto", aim=1.2),
        Subject("a ps.function", lambda x, y: program(x, y), "auto", aim=1.2),
    ]


def recording_seconds(subject: Subject, width: int, calls: int) -> float:
    """Seconds for recording one call."""
    with ps.batching(granularity=subject.granularity):
        # Made inside, so that they are recorded values as well.
        x, y = torch.ones(width) * 2, torch.ones(width) * 3
        return _seconds(subject.call, x, y, calls)


def eager_seconds(subject: Subject, width: int, calls: int) -> float:
    """Seconds for executing one call."""
    return _seconds(subject.call, torch.full((width,), 2.0), torch.full((width,), 3.0), calls)


def _seconds(call: Callable[[Tensor, Tensor], Any], x: Tensor, y: Tensor, calls: int) -> float:
    call(x, y)  # the first call of its kind is learned
    begin = perf_counter()
    for _ in repeat(None, calls):
        call(x, y)
    middle = perf_counter()
    for _ in repeat(None, calls):
        _nothing(x, y)
    return (2 * middle - begin - perf_counter()) / calls


def _nothing(x: Tensor, y: Tensor) -> None:
    """What a loop and a Python call cost without recording."""


def measure_subject(subject: Subject, options: argparse.Namespace) -> tuple[str, ...]:
    """A line of the table."""
    recorded, executed = [], []
    with torch.no_grad() if options.no_grad else nullcontext():
        recording_seconds(subject, options.width, options.calls)
        for _ in range(options.rounds):
            recorded.append(1e6 * recording_seconds(subject, options.width, options.calls))
            executed.append(1e6 * eager_seconds(subject, options.width, options.calls))
    aim = "" if subject.aim is None else rounded(subject.aim)
    return (subject.name, str(Spread.of(recorded)), aim, rounded(Spread.of(executed).middle))


def measure_switches(options: argparse.Namespace) -> tuple[str, ...]:
    """Microseconds for waiting in a fiber: away from it, and back."""
    waits = max(1, options.calls // options.fibers)
    found = []
    for _ in range(options.rounds):
        begin = perf_counter()
        switch_fibers(options.fibers, waits)
        found.append(1e6 * (perf_counter() - begin) / (options.fibers * waits))
    return ("a fiber, away and back", str(Spread.of(found)), "", "")


def measure(options: argparse.Namespace) -> Iterator[Figures]:
    """All kinds of calls."""
    lines = [measure_subject(subject, options) for subject in subjects(options.width)]
    lines.append(measure_switches(options))
    yield Figures(f"vectors of {options.width}", HEADINGS, tuple(lines))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--width", type=int, default=150)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--fibers", type=int, default=100)
    parser.add_argument("--no-grad", action="store_true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("recording", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
