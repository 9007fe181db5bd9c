"""Claim: training a Tree-LSTM inside `ps.profile()` takes less than 5% longer than without it.

The same training step (forward, backward, descent; random binary trees of 10 to 60 leaves), plain
and inside a profile of its own, in turns. Both find the plan of an earlier call, so that what is
recorded is a larger share of the step than where every batch is planned anew. The last line writes
the trace for Perfetto as well, which is not part of the claim. On a CPU seconds are those of the
processor: the difference is smaller than what other programs do to a clock.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import penstock as ps
from benchmarks.baselines.training import training_step
from benchmarks.baselines.tree_lstm import TreeLSTM
from benchmarks.harness import Comparison, compare
from benchmarks.script import run_script
from penstock.data import random_binary_trees


@dataclass(frozen=True)
class ByProcessor:
    """A candidate that counts the processor's seconds."""

    call: Callable[[], Any]

    def __call__(self) -> Any:
        return self.call()

    def seconds_per_call(self, repeats: int) -> float:
        """The seconds of one of `repeats` calls."""
        began = time.process_time()
        for _ in range(repeats):
            self.call()
        return (time.process_time() - began) / repeats


def measure_batch(batch: int, options: argparse.Namespace) -> Comparison:
    """One batch size."""
    torch.manual_seed(0)
    model = TreeLSTM(hidden=options.hidden).to(options.device)
    trees = random_binary_trees(batch, seed=0)
    weights = torch.randn(options.hidden, device=options.device)

    def plain() -> Any:
        return training_step(model, lambda: model.forward.map(trees, out="stack"), weights)

    def profiled() -> Any:
        with ps.profile():
            return plain()

    def traced() -> Any:
        with ps.profile() as run:
            result = plain()
        run.export_chrome_trace(os.devnull)
        return result

    calls = {"plain": plain, "profiled": profiled, "profiled, trace written": traced}
    on_cpu = options.device == "cpu"
    return compare(
        f"Tree-LSTM training, hidden {options.hidden}, batch {batch}",
        {name: ByProcessor(call) if on_cpu else call for name, call in calls.items()},
        reference="plain",
        work=batch,
        unit="trees",
        rounds=options.rounds,
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All batch sizes."""
    for batch in options.batches:
        yield measure_batch(batch, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes, and where to run."""
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument("--batches", type=int, nargs="+", default=[25, 256])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("profile_overhead", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
