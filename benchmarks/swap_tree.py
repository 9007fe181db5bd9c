"""Claim: a Tree-LSTM trains over trees whose saved values are ten times what memory may hold.

Binary trees, forward and backward, under each memory policy; the budget for saved values is a tenth
of what they take. All leaves of all trees are one launch without a policy; under a budget wide
launches run in pieces. Beside them the hand-batched program in eager PyTorch, plain and with its
saved tensors on the host. On a CPU values are swapped to a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu

from benchmarks.baselines import tree_lstm
from benchmarks.baselines.levels import needed_levels_of
from benchmarks.baselines.training import Forward, training_step
from benchmarks.figures import Figures
from benchmarks.harness import Comparison, compare
from benchmarks.inside import most_saved_bytes
from benchmarks.policies import in_mebibytes, most_bytes, split_by_memory, under_policies
from benchmarks.script import run_script
from penstock.data import Tree, random_binary_trees

REFERENCE = "penstock, keep"

#: Calls before any is timed: `auto` has tried its ways by then.
CALLS = 6


def forwards(model: tree_lstm.TreeLSTM, trees: list[Tree], budget: int) -> dict[str, Forward]:
    """Every way to the states of the roots."""
    program = model.forward

    def mapped() -> Tensor:
        return program.map(trees, out="stack")  # type: ignore[no-any-return]

    def by_hand() -> Tensor:
        return tree_lstm.by_level_needed(model, needed_levels_of(trees))

    def on_the_host() -> Tensor:
        with save_on_cpu(pin_memory=model.leaf_gates.weight.is_cuda):
            return by_hand()

    return {
        **under_policies(mapped, budget),
        "by level, needed (b+)": by_hand,
        "by level, needed, save_on_cpu": on_the_host,
    }


def measure_leaves(leaves: int, options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """Trees of one size."""
    torch.manual_seed(0)
    hidden = options.hidden
    model = tree_lstm.TreeLSTM(options.vocabulary, hidden, hidden).to(options.device)
    trees = random_binary_trees(
        options.trees, leaves=(leaves, leaves), vocabulary=options.vocabulary, seed=0
    )
    weights = torch.randn(hidden, device=options.device)

    def train(forward: Forward) -> object:
        return training_step(model, forward, weights)

    keep = forwards(model, trees, 0)[REFERENCE]
    saved = most_saved_bytes(lambda: train(keep)) or 0
    budget = saved // options.times
    ways = forwards(model, trees, budget)
    able, unable = split_by_memory(ways, train)
    for _ in range(CALLS):
        for candidate in able.values():
            candidate()
    rows = [
        (name, in_mebibytes(most_bytes(candidate, options.device)))
        for name, candidate in able.items()
    ]
    yield compare(
        f"Tree-LSTM training, hidden {hidden}, {options.trees} trees of {leaves:,} leaves",
        able,
        reference=REFERENCE,
        work=options.trees,
        unit="trees",
        rounds=options.rounds,
        tolerance=2e-2,
        notes={
            "saved": f"{in_mebibytes(saved)} MiB",
            "budget": f"{in_mebibytes(budget)} MiB",
            "structure": "known to Penstock, made by hand each time for the others",
        },
        missing=unable,
    )
    yield Figures("MiB held at most", ("candidate", f"{leaves:,} leaves"), tuple(rows))


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """All sizes."""
    for leaves in options.leaves:
        yield from measure_leaves(leaves, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=9)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--trees", type=int, default=16)
    parser.add_argument("--leaves", type=int, nargs="+", default=[500])
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--times", type=int, default=10, help="saved values over the budget")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("swap_tree", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
