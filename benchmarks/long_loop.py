"""Claim: a loop of any length over 1,024 instances runs in flat memory, planner included.

Two loops with the same body under no_grad. In one the host counts the iterations and may plan
ahead; in the other each iteration is decided by a computed value, which has to be read back. What
the planner and the arenas hold is looked at all along one long run; then shorter runs are timed
against an eager loop over all instances at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from benchmarks.figures import Figures, rounded
from benchmarks.harness import Comparison, compare
from benchmarks.inside import Occupancy, watched
from benchmarks.script import run_script

HEADINGS = ("iterations", "live rows", "room for rows", "arena slots", "resident MiB")

#: From a start, and a number of iterations, to the last state.
Loop = Callable[[Tensor, int], Tensor]


def body(x: Tensor, progress: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """One iteration, for one instance or for rows.

    The progress depends on the state, so no host can foresee it, but not on how the state is
    rounded: every way to run makes the same number of iterations.
    """
    x = torch.tanh(1.5 * x + progress.unsqueeze(-1))
    return x, progress + step * (x.abs() <= 1).all(-1)


@ps.function
def counted(x: Tensor, iterations: Any, step: Tensor) -> Any:
    """As many iterations as the host counts."""
    start = (0, x, torch.zeros(()))
    return ps.while_loop(
        lambda k, x, progress: k < iterations,
        lambda k, x, progress: (k + 1, *body(x, progress, step)),
        start,
    )[1]


@ps.function
def computed(x: Tensor, step: Tensor) -> Any:
    """As many iterations as it takes until the progress, which is data, is complete."""
    start = (x, torch.zeros(()))
    return ps.while_loop(
        lambda x, progress: progress < 1, lambda x, progress: body(x, progress, step), start
    )[0]


def _step(iterations: int) -> Tensor:
    """A little more than needed, so that the rounded sum does not decide the last iteration."""
    return torch.tensor(1 / (iterations - 0.5))


def _run_counted(x: Tensor, iterations: int) -> Tensor:
    shared = {"iterations": iterations, "step": _step(iterations)}
    result: Tensor = counted.map(x, out="stack", **shared)
    return result


def _run_computed(x: Tensor, iterations: int) -> Tensor:
    result: Tensor = computed.map(x, out="stack", step=_step(iterations))
    return result


def _run_counted_eagerly(x: Tensor, iterations: int) -> Tensor:
    step, progress = _step(iterations), torch.zeros(len(x))
    for _ in range(iterations):
        x, progress = body(x, progress, step)
    return x


def _run_computed_eagerly(x: Tensor, iterations: int) -> Tensor:
    """All rows go on until the last is done; those that are done keep their state."""
    step, progress = _step(iterations), torch.zeros(len(x))
    while (goes_on := progress < 1).any():
        new_x, new_progress = body(x, progress, step)
        x = torch.where(goes_on.unsqueeze(-1), new_x, x)
        progress = torch.where(goes_on, new_progress, progress)
    return x


LOOPS: dict[str, tuple[Loop, Loop]] = {
    "counted": (_run_counted, _run_counted_eagerly),
    "computed": (_run_computed, _run_computed_eagerly),
}


def occupancies(loop: Loop, x: Tensor, iterations: int, points: int) -> list[Occupancy]:
    """What a run holds at some points of it, the first early and the last at its end."""
    found: list[Occupancy] = []

    def look(now: Occupancy) -> None:
        if not found or now.iterations >= len(found) * iterations / points:
            found.append(now)

    with watched(look):
        loop(x, iterations)
    return found


def memory_figures(name: str, x: Tensor, iterations: int, points: int) -> Figures:
    """How full the machine is all along a run."""
    found = occupancies(LOOPS[name][0], x, iterations, points)
    # The first look comes before all chunks are there.
    early, late = found[min(1, len(found) - 1)], found[-1]
    growth = late.resident_bytes / early.resident_bytes
    return Figures(
        f"{name} loop, {iterations:,} iterations, {len(x):,} instances",
        HEADINGS,
        tuple(map(_row, found)),
        f"resident memory at the end: {growth:.3f} times that after "
        f"{early.iterations:,} iterations; arena slots: {late.slots / early.slots:.3f} times",
    )


def _row(now: Occupancy) -> tuple[str, ...]:
    counts = (now.iterations, now.live_rows, now.row_capacity, now.slots)
    return (*(f"{count:,}" for count in counts), rounded(now.resident_bytes / 2**20))


def speed(name: str, x: Tensor, iterations: int, rounds: int) -> Comparison:
    """Iterations a second, for all instances together."""
    ours, eager = LOOPS[name]
    return compare(
        f"{name} loop, {len(x):,} instances",
        {
            "penstock": partial(ours, x, iterations),
            "eager, all instances at once": partial(eager, x, iterations),
        },
        reference="eager, all instances at once",
        work=iterations,
        unit="iterations",
        rounds=rounds,
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """Memory, then speed, of each loop."""
    torch.manual_seed(0)
    x = torch.randn(options.instances, options.width)
    iterations = 1_000_000 if options.full else options.iterations
    with torch.no_grad():
        for name in options.loops:
            yield memory_figures(name, x, iterations, options.points)
        for name in options.loops:
            yield speed(name, x, options.timed_iterations, options.rounds)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--loops", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--full", action="store_true", help="1,000,000 iterations")
    parser.add_argument("--instances", type=int, default=1024)
    parser.add_argument("--width", type=int, default=16, help="elements of the state")
    parser.add_argument("--points", type=int, default=8, help="how often to look")
    parser.add_argument("--timed-iterations", type=int, default=1000)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("long_loop", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
