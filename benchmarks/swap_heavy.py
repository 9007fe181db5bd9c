"""Claim: where the body of a loop is heavy enough, swapping takes 3% longer than keeping at most.

The LSTM of `swap_lstm`, in full float32, with so many units that its products take longer than
copies of what it saves: products grow with the square of the units, saved values do not. Most of
the values have to leave. Beside them the same baselines. On a GPU take 4,096 units at batch 512
(`--full-sizes`), on a CPU a few hundred.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.figures import Figures
from benchmarks.script import run_script
from benchmarks.swap_lstm import add_common_options, measure_lengths
from penstock.run.memory.policy import bytes_of


def measure(options: argparse.Namespace) -> Iterator[Figures]:
    """One length."""
    if options.full_sizes:
        options.hidden, options.batch, options.lengths = 4096, 512, [64]
        options.budget, options.cap = 1 << 30, 32 << 30
    options.inputs = options.hidden
    yield from measure_lengths(options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_common_options(parser)
    parser.set_defaults(warm=640, tf32=False)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32])
    parser.add_argument("--budget", type=bytes_of, default="32MiB", help="for saved values")
    parser.add_argument(
        "--full-sizes", action="store_true", help="4,096 units, batch 512, 1 GiB of 32 GiB"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("swap_heavy", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
