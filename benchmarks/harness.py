"""Compares candidates that compute the same thing, fairly.

All results are checked to agree before anything is timed. Then candidates are interleaved: each
round times every one of them once, in rotating order, so that what slows the machine for a while
slows all alike. Ratios are taken within a round. Medians and interquartile ranges, never means.
The harness knows nothing of what it times; warm-up and set-up are the candidates' affair.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils import _pytree

from benchmarks.environment import describe_environment

Candidate = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    low: float
    middle: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        """The quartiles of `values`, of which there may be one."""
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(low, median(values), high)


@dataclass(frozen=True)
class Measurement:
    """What one candidate did in all rounds."""

    name: str
    #: Seconds for one call, one entry a round.
    seconds: list[float]
    #: Items a second: the work of one call over its seconds.
    rate: Spread
    #: How many times as fast as the reference, round by round.
    ratio: Spread


@dataclass(frozen=True)
class Comparison:
    """One measured claim: candidates, figures, and where they were measured."""

    title: str
    #: What one item is, in the plural: "trees".
    unit: str
    #: Items done by one call.
    work: int
    reference: str
    #: What the timed part contains and leaves out, in words, and the sizes it was run with.
    notes: dict[str, str]
    measurements: list[Measurement]
    environment: dict[str, str | int] = field(default_factory=describe_environment)

    def __getitem__(self, name: str) -> Measurement:
        return next(entry for entry in self.measurements if entry.name == name)

    def table(self) -> Table:
        """The comparison for a terminal."""
        caption = f"ratio: times as fast as {self.reference}; " + "; ".join(
            f"{key}: {value}" for key, value in self.notes.items()
        )
        table = Table(title=self.title, caption=caption.rstrip("; "))
        table.add_column("candidate", no_wrap=True)
        for heading in (f"{self.unit}/s", "quartiles", "ratio", "quartiles"):
            table.add_column(heading, justify="right")
        for entry in self.measurements:
            table.add_row(entry.name, *_cells(entry.rate), *_cells(entry.ratio))
        return table

    def markdown(self) -> str:
        """One row for each candidate, for RESULTS.md."""
        rows = []
        for entry in self.measurements:
            rate, ratio = ("{} ({})".format(*_cells(each)) for each in (entry.rate, entry.ratio))
            cells = [self.title, entry.name, f"{rate} {self.unit}/s", ratio]
            cells += [str(self.environment[key]) for key in ("commit", "date", "device", "threads")]
            rows.append(f"| {' | '.join(cells)} |")
        return "\n".join(rows)

    def show(self) -> None:
        """Print the table, and where it was measured."""
        console = Console()
        console.print(self.table())
        console.print(", ".join(f"{key} {value}" for key, value in self.environment.items()))

    def write_json(self, path: Path) -> None:
        """Everything, the seconds of every round included."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def compare(
    title: str,
    candidates: Mapping[str, Candidate],
    *,
    reference: str,
    bounds: Mapping[str, Candidate] | None = None,
    work: int = 1,
    unit: str = "calls",
    rounds: int = 9,
    least_seconds: float = 0.05,
    tolerance: float = 1e-4,
    notes: Mapping[str, str] | None = None,
) -> Comparison:
    """Check that all candidates agree with `reference`, then time them in interleaved rounds.

    A round calls each candidate often enough to fill `least_seconds`. `bounds` are timed with the
    others and not checked: parts of the work, such as its products alone, that nothing can beat.
    """
    check_agreement(candidates, reference, tolerance)
    calls = {**candidates, **(bounds or {})}
    repeats = {name: _repeats(call, least_seconds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in _rotated(list(calls), number):
            seconds[name].append(_seconds_per_call(calls[name], repeats[name]))
    measurements = [_measure(name, seconds, reference, work) for name in calls]
    return Comparison(title, unit, work, reference, dict(notes or {}), measurements)


def check_agreement(candidates: Mapping[str, Candidate], reference: str, tolerance: float) -> None:
    """Call each candidate once; raise where one differs from the reference."""
    expected = _pytree.tree_map(_detached, candidates[reference]())
    for name, call in candidates.items():
        found = _pytree.tree_map(_detached, call())
        try:
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        except AssertionError as difference:
            raise AssertionError(f"{name} and {reference} disagree: {difference}") from None


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _seconds_per_call(call: Candidate, repeats: int) -> float:
    _wait_for_devices()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait_for_devices()
    return (time.perf_counter() - begin) / repeats


def _wait_for_devices() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _repeats(call: Candidate, least_seconds: float) -> int:
    call()
    return max(1, round(least_seconds / _seconds_per_call(call, 1)))


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _measure(name: str, seconds: dict[str, list[float]], reference: str, work: int) -> Measurement:
    own = seconds[name]
    ratios = [theirs / ours for theirs, ours in zip(seconds[reference], own)]
    return Measurement(name, own, Spread.of([work / each for each in own]), Spread.of(ratios))


def _cells(spread: Spread) -> tuple[str, str]:
    return _figure(spread.middle), f"{_figure(spread.low)} to {_figure(spread.high)}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
