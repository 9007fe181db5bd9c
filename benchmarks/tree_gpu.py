"""Claim: batched Tree-LSTM training on a GPU is faster than hand-batched code.

Forward and backward of a binary Tree-LSTM (embedding 300) on CUDA, a fresh structure planned at
every step, against the hand-batched programs under torch autograd. TF32 products, as training code
uses them.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from benchmarks.baselines import tree_lstm
from benchmarks.harness import compare
from benchmarks.tree_training import forwards
from penstock.data import random_binary_trees


def step(model: tree_lstm.TreeLSTM, forward, weights: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """Forward and backward, waiting for the device."""
    loss = (forward() @ weights).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    torch.cuda.synchronize()
    return torch.stack([loss, *(gradient.norm() for gradient in gradients)]).detach().cpu()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    for batch in options.batches:
        torch.manual_seed(0)
        model = tree_lstm.TreeLSTM(hidden=options.hidden).cuda()
        trees = random_binary_trees(batch, seed=batch)
        weights = torch.randn(options.hidden, device="cuda")
        ways = forwards(model, trees, compiled=False)
        del ways["per sample (a)"]
        compare(
            f"Tree-LSTM training on a GPU, hidden {options.hidden}, batch {batch}",
            {
                name: lambda forward=forward: step(model, forward, weights)
                for name, forward in ways.items()
            },
            reference="by level, needed (b+)",
            work=batch,
            unit="trees",
            rounds=options.rounds,
            tolerance=2e-2,
        ).show()


if __name__ == "__main__":
    main()
