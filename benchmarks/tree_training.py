"""Claim: batched Tree-LSTM training is at least as fast as hand-batched code at batches of 64 and 256.

Forward, backward and an SGD step on a binary Tree-LSTM (embedding 300), random binary trees of 10 to 60 leaves. A fresh
batch has a fresh structure, so the level structure of the hand-batched programs is made inside the timed part. With
--compiled the hand-batched program is also run with its cell under torch.compile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.baselines import tree_lstm
from benchmarks.baselines.levels import levels_of, needed_levels_of
from benchmarks.harness import Comparison, compare
from benchmarks.programs.tree_lstm import tree_program
from penstock.data import Tree, random_binary_trees

Forward = Callable[[], Tensor]


def forwards(model: tree_lstm.TreeLSTM, trees: list[Tree], *, compiled: bool) -> dict[str, Forward]:
    """Every way to compute the roots' states of one batch."""
    nodes = [tree.to_nodes() for tree in trees]
    program = tree_program(model)
    found: dict[str, Forward] = {
        "penstock": lambda: program.map(trees, out="stack"),
        "per sample (a)": lambda: tree_lstm.per_sample(model, nodes),
        "by level (b)": lambda: tree_lstm.by_level(model, levels_of(trees)),
        "by level, needed (b+)": lambda: tree_lstm.by_level_needed(model, needed_levels_of(trees)),
    }
    if compiled:
        twin = tree_lstm.TreeLSTM.compiled(model)
        found["by level, compiled (c)"] = lambda: tree_lstm.by_level(twin, levels_of(trees))
    return found


def training_step(model: tree_lstm.TreeLSTM, forward: Forward, weights: Tensor) -> Tensor:
    """Forward, backward, SGD; the learning rate is so small that all candidates see one model."""
    for parameter in model.parameters():
        parameter.grad = None
    loss = (forward() @ weights).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-1e-12)
    return loss.detach()


def measure(batch: int, *, hidden: int, rounds: int, compiled: bool) -> Comparison:
    """One row of the claim."""
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(hidden=hidden)
    trees = random_binary_trees(batch, seed=batch)
    weights = torch.randn(hidden)
    candidates = {
        name: lambda forward=forward: training_step(model, forward, weights)
        for name, forward in forwards(model, trees, compiled=compiled).items()
    }
    return compare(
        f"Tree-LSTM training, hidden {hidden}, batch {batch}",
        candidates,
        reference="by level, needed (b+)",
        work=batch,
        unit="trees",
        rounds=rounds,
        notes={"level structure": "timed"},
    )


def main() -> None:
    """Measure and print; --json keeps the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[150, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 25, 64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", type=Path, help="a folder for the full results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for hidden in options.hidden:
        for batch in options.batches:
            result = measure(
                batch, hidden=hidden, rounds=options.rounds, compiled=options.compiled
            )
            result.show()
            if options.json:
                options.json.mkdir(parents=True, exist_ok=True)
                result.write_json(options.json / f"tree_training_{hidden}_{batch}.json")


if __name__ == "__main__":
    main()
