"""Claim: Tree-LSTM training at batches of 64 and 256 is at least as fast as by level (b).

Forward, backward and an SGD step on a binary Tree-LSTM (embedding 300), random binary trees of 10
to 60 leaves. A fresh batch has a fresh structure, so the level structure of the hand-batched
programs is made inside the timed part, and Penstock plans every time; it is also timed with the
plan of an earlier call on the same trees. With --compiled the hand-batched program is also run with
its cell under torch.compile.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.baselines import tree_lstm
from benchmarks.baselines.levels import levels_of, needed_levels_of
from benchmarks.baselines.training import Forward, training_step
from benchmarks.harness import Comparison, compare
from benchmarks.inside import planning_anew
from benchmarks.programs.tree_lstm import tree_program
from benchmarks.script import run_script
from penstock.data import Tree, random_binary_trees


def forwards(model: tree_lstm.TreeLSTM, trees: list[Tree], *, compiled: bool) -> dict[str, Forward]:
    """Every way to compute the roots' states of one batch."""
    nodes = [tree.to_nodes() for tree in trees]
    program = tree_program(model)

    def planned() -> Tensor:
        with planning_anew():
            return program.map(trees, out="stack")  # type: ignore[no-any-return]

    found: dict[str, Forward] = {
        "penstock": planned,
        "penstock, known plan": lambda: program.map(trees, out="stack"),
        "per sample (a)": lambda: tree_lstm.per_sample(model, nodes),
        "by level (b)": lambda: tree_lstm.by_level(model, levels_of(trees)),
        "by level, needed (b+)": lambda: tree_lstm.by_level_needed(model, needed_levels_of(trees)),
    }
    if compiled:
        twin = tree_lstm.TreeLSTM.compiled(model)
        found["by level, compiled (c)"] = lambda: tree_lstm.by_level(twin, levels_of(trees))
    return found


def measure_batch(batch: int, hidden: int, *, rounds: int, compiled: bool) -> Comparison:
    """One batch size."""
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(hidden=hidden)
    trees = random_binary_trees(batch, seed=batch)
    weights = torch.randn(hidden)
    products = tree_lstm.Products(model, levels_of(trees))
    return compare(
        f"Tree-LSTM training, hidden {hidden}, batch {batch}",
        {
            name: partial(training_step, model, forward, weights)
            for name, forward in forwards(model, trees, compiled=compiled).items()
        },
        reference="by level, needed (b+)",
        parts={"products alone": products.forward_and_backward},
        bound="products alone",
        work=batch,
        unit="trees",
        rounds=rounds,
        notes={"level structure of b, b+ and c": "timed"},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    compiled = options.compiled
    if compiled and not tree_lstm.can_compile():
        print("by level, compiled (c): left out, no C++ compiler was found")
        compiled = False
    for hidden in options.hidden:
        for batch in options.batches:
            yield measure_batch(batch, hidden, rounds=options.rounds, compiled=compiled)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--hidden", type=int, nargs="+", default=[150, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 25, 64, 256])
    parser.add_argument("--compiled", action="store_true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_training", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
