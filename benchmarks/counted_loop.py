"""Claim: a counted loop is within 3% of the same loop unrolled in eager PyTorch.

The same number of iterations for every instance, so that by hand all instances are rows of one
tensor and the loop is unrolled by Python. Penstock runs the program of one instance, written with
`scan`, with `foldl` and as `for t in range(n)`. A small body is three row-wise operations on a
short vector; a large one has a matrix product too. Plans are known, as for any loop that runs
twice with the same lengths; planning anew is a line of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines.training import Forward, loss_and_gradients
from benchmarks.harness import Comparison, compare
from benchmarks.inside import planned_anew
from benchmarks.programs.counted import WAYS, Body
from benchmarks.script import run_script

REFERENCE = "eager, unrolled"


def unrolled(body: Body, rows: Tensor) -> Tensor:
    """All instances at once."""
    state = torch.zeros(len(rows), body.width)
    for x in rows.unbind(1):
        state = body(state, x)
    return state


def forwards(body: Body, rows: Tensor) -> dict[str, Forward]:
    """Every way to the last states."""
    programs = {name: way(body) for name, way in WAYS.items()}

    def call(name: str) -> Tensor:
        return programs[name].map(rows, out="stack")  # type: ignore[no-any-return]

    known: dict[str, Forward] = {f"penstock, {name}": partial(call, name) for name in programs}
    return {
        **known,
        "penstock, scan, planned": planned_anew(partial(call, "scan")),
        REFERENCE: lambda: unrolled(body, rows),
    }


def measure_case(size: str, mode: str, batch: int, options: argparse.Namespace) -> Comparison:
    """One body and batch."""
    torch.manual_seed(0)
    width = options.large_width if size == "large" else options.small_width
    body, length = Body(width, large=size == "large"), options.length
    ways = forwards(body, torch.randn(batch, length, width))
    weights = torch.randn(width)
    candidates: dict[str, Callable[[], Any]] = dict(ways)
    if mode == "training":
        candidates = {
            name: partial(loss_and_gradients, body, forward, weights)
            for name, forward in ways.items()
        }
    return compare(
        f"{size} body of width {width}, {mode}, {length} iterations, batch {batch}",
        candidates,
        reference=REFERENCE,
        work=length,
        unit="iterations",
        rounds=options.rounds,
        notes={"structure": "plans are known, but for `planned`, which is timed with planning"},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All bodies, modes and batches."""
    for size, mode, batch in product(options.bodies, options.modes, options.batches):
        with torch.set_grad_enabled(mode == "training"):
            result = measure_case(size, mode, batch, options)
        yield result


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    bodies, modes = ("small", "large"), ("training", "inference")
    parser.add_argument("--bodies", nargs="+", choices=bodies, default=list(bodies))
    parser.add_argument("--modes", nargs="+", choices=modes, default=list(modes))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--length", type=int, default=50, help="iterations")
    parser.add_argument("--small-width", type=int, default=16)
    parser.add_argument("--large-width", type=int, default=256)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("counted_loop", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
