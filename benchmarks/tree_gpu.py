"""Claim: Tree-LSTM training on a GPU takes at most three times as long as hand-batched code.

Forward and backward of a binary Tree-LSTM (embedding 300) on CUDA, a fresh structure planned at
every step, against the hand-batched programs under torch autograd. TF32 products, as training code
uses them. The host is the bottleneck: one launch here is several kernels and some planning. Does
nothing where there is no CUDA device.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.baselines import tree_lstm
from benchmarks.baselines.levels import levels_of
from benchmarks.baselines.training import loss_and_gradients
from benchmarks.harness import Comparison, compare
from benchmarks.script import run_script
from benchmarks.tree_training import forwards
from penstock.data import random_binary_trees


def measure_batch(batch: int, hidden: int, rounds: int) -> Comparison:
    """One batch size."""
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(hidden=hidden).cuda()
    trees = random_binary_trees(batch, seed=batch)
    weights = torch.randn(hidden, device="cuda")
    ways = forwards(model, trees, compiled=False)
    del ways["per sample (a)"]
    products = tree_lstm.Products(model, levels_of(trees))
    return compare(
        f"Tree-LSTM training on a GPU, hidden {hidden}, batch {batch}",
        {
            name: partial(loss_and_gradients, model, forward, weights)
            for name, forward in ways.items()
        },
        reference="by level, needed (b+)",
        parts={"products alone": products.forward_and_backward},
        bound="products alone",
        work=batch,
        unit="trees",
        rounds=rounds,
        tolerance=2e-2,
        notes={"level structure of b and b+": "timed"},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    if not torch.cuda.is_available():
        print("left out: there is no CUDA device")
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    for hidden in options.hidden:
        for batch in options.batches:
            yield measure_batch(batch, hidden, options.rounds)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_gpu", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
