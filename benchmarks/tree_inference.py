"""Claim: Tree-LSTM inference at batch 256 is within 1.3 times of the best hand-batched program.

Hidden 150, embedding 300, random binary trees of 10 to 60 leaves, batches of 1, 25 and 256, one
thread. The level structure of the hand-batched programs is made inside the timed part unless
--prepared is given: a fresh batch has a fresh structure. Penstock is timed both ways: planning
every time, and with the plan of an earlier call on the same trees.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.baselines import tree_lstm
from benchmarks.baselines.levels import levels_of, needed_levels_of
from benchmarks.harness import Comparison, compare
from benchmarks.inside import planning_anew
from benchmarks.programs.tree_lstm import tree_program
from benchmarks.script import run_script
from penstock.data import Tree, random_binary_trees


def candidates_for(
    model: tree_lstm.TreeLSTM, trees: list[Tree], *, prepared: bool
) -> dict[str, Callable[[], Tensor]]:
    """Every way to compute the roots' states; `prepared` leaves level structure untimed."""
    nodes = [tree.to_nodes() for tree in trees]
    levels, needed = levels_of(trees), needed_levels_of(trees)
    encode = tree_program(model)

    def planned() -> Tensor:
        with planning_anew():
            return encode.map(trees, out="stack")  # type: ignore[no-any-return]

    return {
        "penstock": planned,
        "penstock, known plan": lambda: encode.map(trees, out="stack"),
        "per sample (a)": lambda: tree_lstm.per_sample(model, nodes),
        "by level (b)": lambda: tree_lstm.by_level(model, levels if prepared else levels_of(trees)),
        "by level, needed (b+)": lambda: tree_lstm.by_level_needed(
            model, needed if prepared else needed_levels_of(trees)
        ),
    }


def measure_batch(batch: int, hidden: int, *, rounds: int, prepared: bool) -> Comparison:
    """One batch size."""
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(hidden=hidden)
    trees = random_binary_trees(batch, seed=batch)
    with torch.no_grad():
        return compare(
            f"Tree-LSTM inference, hidden {hidden}, batch {batch}",
            candidates_for(model, trees, prepared=prepared),
            reference="by level, needed (b+)",
            parts={"products alone": tree_lstm.Products(model, levels_of(trees)).forward},
            bound="products alone",
            work=batch,
            unit="trees",
            rounds=rounds,
            notes={"level structure of b and b+": "not timed" if prepared else "timed"},
        )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All batch sizes."""
    for hidden in options.hidden:
        for batch in options.batches:
            yield measure_batch(batch, hidden, rounds=options.rounds, prepared=options.prepared)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--hidden", type=int, nargs="+", default=[150])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 25, 256])
    parser.add_argument("--prepared", action="store_true")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_inference", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
