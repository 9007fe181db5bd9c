"""Claim: iterations of a loop over two devices overlap: 1.8 times as many a second on two cores.

The body is a chain of two stages of a few milliseconds, each with a state of its own, on a CPU
device of its own with one thread: the second stage of one iteration can run while the first one of
the next does. `parallel_iterations` bounds how many are in flight; with 1 they run one at a time.
Planning is inside the timed part, as placed programs plan every call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.harness import Comparison, compare
from benchmarks.programs.pipeline import staged_loop
from benchmarks.script import run_script

REFERENCE = "1 in flight"


def stage(width: int, layers: int) -> nn.Module:
    """Products and row-wise operations that take a while."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts)


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All bounds, side by side."""
    torch.manual_seed(0)
    stages = [stage(options.width, options.layers) for _ in range(options.devices)]
    devices = [f"cpu:{number}" for number in range(options.devices)]
    x = torch.randn(options.batch, options.width)
    trips = [options.iterations] * options.batch

    def call(places: list[str | None], bound: int | None) -> Callable[[], Tensor]:
        program = staged_loop(stages, places, bound)
        return partial(program.map, x, trips, out="stack")

    candidates = {f"{bound} in flight": call([*devices], bound) for bound in options.bounds}
    candidates["penstock"] = call([*devices], None)
    candidates["one device"] = call([None] * len(devices), None)
    with torch.no_grad():
        yield compare(
            f"{options.devices} stages of {options.layers} layers of width {options.width}, "
            f"batch {options.batch}, {options.iterations} iterations",
            candidates,
            reference=REFERENCE,
            work=options.iterations,
            unit="iterations",
            rounds=options.rounds,
            notes={"structure": "planning is timed, but for one device", "penstock": "no bound"},
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--bounds", type=int, nargs="+", default=[1, 2, 4, 8, 32])
    parser.add_argument("--devices", type=int, default=2, help="CPU devices, one stage each")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4, help="of each stage")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("parallel_iterations", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
