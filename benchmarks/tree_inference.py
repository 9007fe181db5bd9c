"""Claim: batched Tree-LSTM inference is within 1.3 times of the best hand-batched program.

Hidden 150, embedding 300, random binary trees of 10 to 60 leaves, batches of 1, 25 and 256, one
thread. The level structure of the hand-batched programs is made inside the timed part unless
--prepared is given: a fresh batch has a fresh structure.
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


def candidates_for(
    model: tree_lstm.TreeLSTM, trees: list[Tree], *, prepared: bool
) -> dict[str, Callable[[], Tensor]]:
    """The baselines as calls without arguments; `prepared` leaves level structure untimed."""
    nodes = [tree.to_nodes() for tree in trees]
    levels, needed = levels_of(trees), needed_levels_of(trees)
    encode = tree_program(model)
    return {
        "penstock": lambda: encode.map(trees, out="stack"),
        "per sample (a)": lambda: tree_lstm.per_sample(model, nodes),
        "by level (b)": lambda: tree_lstm.by_level(model, levels if prepared else levels_of(trees)),
        "by level, needed (b+)": lambda: tree_lstm.by_level_needed(
            model, needed if prepared else needed_levels_of(trees)
        ),
    }


def measure(batch: int, *, hidden: int, rounds: int, prepared: bool) -> Comparison:
    """One row of the claim."""
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(hidden=hidden)
    trees = random_binary_trees(batch, seed=batch)
    operands = tree_lstm.product_operands(model, levels_of(trees))
    with torch.no_grad():
        return compare(
            f"Tree-LSTM inference, hidden {hidden}, batch {batch}",
            candidates_for(model, trees, prepared=prepared),
            reference="by level, needed (b+)",
            bounds={"products alone": lambda: tree_lstm.products_alone(model, operands)},
            work=batch,
            unit="trees",
            rounds=rounds,
            notes={"level structure": "prepared, not timed" if prepared else "timed"},
        )


def main() -> None:
    """Measure and print; --json keeps the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 25, 256])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prepared", action="store_true")
    parser.add_argument("--json", type=Path, help="a folder for the full results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for batch in options.batches:
        result = measure(
            batch, hidden=options.hidden, rounds=options.rounds, prepared=options.prepared
        )
        result.show()
        if options.json:
            options.json.mkdir(parents=True, exist_ok=True)
            result.write_json(options.json / f"tree_inference_{options.hidden}_{batch}.json")


if __name__ == "__main__":
    main()
