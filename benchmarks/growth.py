"""Claim: planning and total time grow no faster than the number of trees.

Inference of a binary Tree-LSTM over 10 to 10,000 random binary trees in one call: planning alone,
the whole call with planning, and the whole call when the plan is known; beside them the program
batched by hand that keeps only live states, structure included. Last come the times by tree, which
stay level or fall where cost is linear.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from benchmarks.baselines.tree_lstm import TreeLSTM
from benchmarks.figures import Figures
from benchmarks.harness import Comparison, by_item, compare
from benchmarks.script import run_script
from benchmarks.size_plots import times_by_size
from benchmarks.tree_subject import REFERENCE, TreeSubject
from penstock.data import Tree, random_binary_trees

PLANNING = "penstock, planning alone"
WAYS = ("penstock", "penstock, known plan", REFERENCE)


def measure_trees(model: TreeLSTM, trees: list[Tree], rounds: int) -> Comparison:
    """One number of trees."""
    ways, program = TreeSubject(model, trees).forwards(), model.forward
    return compare(
        f"{len(trees):,} trees, {sum(map(len, trees)):,} nodes",
        {name: ways[name] for name in WAYS},
        reference=REFERENCE,
        parts={PLANNING: lambda: program.schedule(trees)},
        work=len(trees),
        unit="trees",
        rounds=rounds,
        notes={"structure": "timed, but for the known plan"},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """All numbers of trees."""
    torch.manual_seed(0)
    model, results = TreeLSTM(hidden=options.hidden), []
    with torch.no_grad():
        for count in options.trees:
            trees = random_binary_trees(count, seed=count)
            results.append(measure_trees(model, trees, options.rounds))
            yield results[-1]
    yield by_item("microseconds by tree", results, units_a_second=1e6)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--trees", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--hidden", type=int, default=150)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("growth", __doc__, add_options, measure, arguments, draw=times_by_size)


if __name__ == "__main__":
    main()
