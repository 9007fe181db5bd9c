"""Compares candidates that compute the same thing, fairly.

All results are checked to agree before anything is timed. Then candidates are interleaved: each
round times every one of them once, in rotating order, so that what slows the machine for a while
slows all alike. Ratios are taken within a round. Medians and interquartile ranges, never means.
The harness knows nothing of what it times; warm-up and set-up are the candidates' affair. One that
runs in another process times itself, in the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any, Protocol, runtime_checkable

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from benchmarks.agreement import check_agreement
from benchmarks.figures import Figures, Spread, rounded

Candidate = Callable[[], Any]

#: Calls before the rounds, and the seconds after which there are no more of them.
WARM_CALLS, MOST_WARMING = 8, 3.0

#: Told what is done now, and how many rounds are over.
Show = Callable[[str, int], None]


@runtime_checkable
class TimesItself(Protocol):
    """A candidate that is not timed from here, as it runs in another process."""

    def __call__(self) -> Any:
        """What it computes."""

    def seconds_per_call(self, repeats: int) -> float:
        """The mean over so many calls, now."""


class Floor(Protocol):
    """A time that nothing can beat, found out while the candidates are timed."""

    name: str

    def look(self) -> None:
        """Called once a round."""

    def seconds(self) -> float:
        """The least time of one call, after the last round."""


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
    #: How much of the bound's speed it has, round by round; None where there is no bound.
    share: Spread | None


@dataclass(frozen=True)
class Comparison:
    """One measured claim: candidates and figures."""

    title: str
    #: What one item is, in the plural: "trees".
    unit: str
    #: Items done by one call.
    work: int
    reference: str
    #: What nothing can beat, if it was timed too.
    bound: str | None
    #: What the timed part contains and leaves out, in words, and the sizes it was run with.
    notes: dict[str, str]
    measurements: list[Measurement]
    #: Candidates that could not be run here, and why.
    missing: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Measurement:
        return next(entry for entry in self.measurements if entry.name == name)

    def figures(self) -> Figures:
        """One row for each candidate."""
        headings = [
            "candidate",
            "ms a call",
            f"{self.unit}/s",
            f"times as fast as {self.reference}",
        ]
        headings += [f"of {self.bound}"] if self.bound else []
        rows = [_row(entry) for entry in self.measurements]
        for name, reason in self.missing.items():
            rows.append((name, "-", f"left out: {reason}", *["-"] * (len(headings) - 3)))
        caption = "; ".join(f"{key}: {value}" for key, value in self.notes.items())
        return Figures(self.title, tuple(headings), tuple(rows), caption)


def compare(
    title: str,
    candidates: Mapping[str, Candidate],
    *,
    reference: str,
    parts: Mapping[str, Candidate] | None = None,
    bound: str | None = None,
    floor: Floor | None = None,
    work: int = 1,
    unit: str = "calls",
    rounds: int = 9,
    least_seconds: float = 0.05,
    tolerance: float = 1e-4,
    notes: Mapping[str, str] | None = None,
    missing: Mapping[str, str] | None = None,
) -> Comparison:
    """Check that all candidates agree with `reference`, then time them in interleaved rounds.

    A round calls each candidate often enough to fill `least_seconds`. `parts` are timed with the
    others and not checked: pieces of the work, such as its products alone. `bound` names one of
    them that nothing can beat; a `floor` is a bound that is computed and not run. `missing` says
    which candidates cannot be run here, and why.
    """
    calls = {**candidates, **(parts or {})}
    with _shown(title, rounds) as show:
        check_agreement(candidates, reference, tolerance, lambda name: show(f"checking {name}", 0))
        seconds = _time_in_rounds(calls, floor, rounds, least_seconds, show)
    if floor is not None:
        bound = floor.name
        seconds[bound] = [floor.seconds()] * rounds
    measurements = [_measure(name, seconds, reference, bound, work) for name in seconds]
    return Comparison(
        title,
        unit,
        work,
        reference,
        bound,
        dict(notes or {}),
        measurements,
        dict(missing or {}),
    )


def _time_in_rounds(
    calls: Mapping[str, Candidate],
    floor: Floor | None,
    rounds: int,
    least_seconds: float,
    show: Show,
) -> dict[str, list[float]]:
    """The seconds of each in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    repeats = {}
    for name, call in calls.items():
        show(f"warming up {name}", 0)
        repeats[name] = _repeats(call, least_seconds)
    for number in range(rounds):
        for name in _rotated(list(calls), number):
            show(name, number)
            seconds[name].append(_seconds_per_call(calls[name], repeats[name]))
        if floor is not None:
            floor.look()
    return seconds


@contextmanager
def _shown(title: str, rounds: int) -> Iterator[Show]:
    """What is done now, where someone looks on; redrawn by hand, as a thread would disturb."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(
        *columns,
        console=console,
        auto_refresh=False,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(title, total=rounds, state="")

        def show(state: str, done: int) -> None:
            progress.update(task, completed=done, state=state, refresh=True)

        yield show


def by_item(title: str, results: Sequence[Comparison], *, units_a_second: float) -> Figures:
    """How long each candidate takes for one item, at all sizes: 1e3 for milliseconds."""
    rows = [
        (
            entry.name,
            *(
                rounded(units_a_second * median(each[entry.name].seconds) / each.work)
                for each in results
            ),
        )
        for entry in results[0].measurements
    ]
    headings = [f"{each.work:,} {each.unit}" for each in results]
    return Figures(title, ("candidate", *headings), tuple(rows))


def ratios(over: Measurement, under: Measurement) -> list[float]:
    """The seconds of one candidate over those of another, round by round."""
    return [mine / theirs for mine, theirs in zip(over.seconds, under.seconds, strict=True)]


def _row(entry: Measurement) -> tuple[str, ...]:
    milliseconds = rounded(1e3 * Spread.of(entry.seconds).middle)
    shares = () if entry.share is None else (f"{entry.share.middle:.0%}",)
    return (entry.name, milliseconds, str(entry.rate), str(entry.ratio), *shares)


def _seconds_per_call(call: Candidate, repeats: int) -> float:
    if isinstance(call, TimesItself):
        return call.seconds_per_call(repeats)
    wait_for_devices()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    wait_for_devices()
    return (time.perf_counter() - begin) / repeats


def wait_for_devices() -> None:
    """Let all work end that was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _repeats(call: Candidate, least_seconds: float) -> int:
    """How often a call is made in a round. The first ones may have to build something: the fastest
    of a few tells.
    """
    fastest, spent = inf, 0.0
    for _ in range(WARM_CALLS):
        taken = _seconds_per_call(call, 1)
        fastest, spent = min(fastest, taken), spent + taken
        if spent > MOST_WARMING:
            break
    return max(1, round(least_seconds / fastest))


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _measure(
    name: str, seconds: dict[str, list[float]], reference: str, bound: str | None, work: int
) -> Measurement:
    own = seconds[name]

    def times_as_fast_as(other: str) -> Spread:
        return Spread.of([theirs / ours for theirs, ours in zip(seconds[other], own)])

    return Measurement(
        name,
        own,
        rate=Spread.of([work / each for each in own]),
        ratio=times_as_fast_as(reference),
        share=times_as_fast_as(bound) if bound else None,
    )
