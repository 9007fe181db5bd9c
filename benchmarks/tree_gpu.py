"""Claim: Tree-LSTM training on a GPU is 5 times as fast as hand-batched code, on fresh structure.

Forward and backward of a binary Tree-LSTM (embedding 300) on CUDA, TF32 products, as training code
uses them. A fresh structure is planned at every step, by the hand-batched programs under torch
autograd as well. The bound is a schedule made by hand, with arenas and a backward pass written out,
captured in one CUDA graph: it costs the host nothing, and it runs for these trees only. Does
nothing where there is no CUDA device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines.arena import CapturedCall
from benchmarks.baselines.products import Products
from benchmarks.baselines.training import loss_and_gradients
from benchmarks.harness import Comparison, compare
from benchmarks.script import run_script
from benchmarks.tree_subject import REFERENCE, TreeSubject, add_tree_options, subjects

BOUND = "one CUDA graph"

#: Trees from which on the per-sample program is left out.
MANY = 100

NOTES = {
    "structure": "timed, but not for `known plan`, `plan ready` and the bound, which have it ready",
    "bound": "the schedule `arena by hand` in one CUDA graph",
}


def candidates_of(subject: TreeSubject, weights: Tensor) -> dict[str, Callable[[], Any]]:
    """Every way to the loss and the gradients that does not need a CUDA graph."""
    schedule = subject.schedule()
    steps: dict[str, Callable[[], Any]] = {
        name: partial(loss_and_gradients, subject.model, forward, weights)
        for name, forward in subject.forwards().items()
    }
    if len(subject.trees) > MANY:
        del steps["per sample (a)"]
    return {
        **steps,
        "arena by hand (d)": lambda: subject.schedule().train(weights),
        "arena by hand, plan ready": lambda: schedule.train(weights),
    }


def measure_batch(subject: TreeSubject, hidden: int, options: argparse.Namespace) -> Comparison:
    """One batch size."""
    batch, weights = len(subject.trees), torch.randn(hidden, device="cuda")
    candidates = candidates_of(subject, weights)
    candidates[BOUND] = CapturedCall(candidates["arena by hand, plan ready"])
    left_out = {"per sample (a)": f"slow, see batches up to {MANY}"} if batch > MANY else {}
    return compare(
        f"Tree-LSTM training on a GPU, hidden {hidden}, batch {batch}",
        candidates,
        reference=REFERENCE,
        parts={"products alone": Products(subject.layers(), "cuda").forward_and_backward},
        bound=BOUND,
        work=batch,
        unit="trees",
        rounds=options.rounds,
        tolerance=2e-2,
        notes=NOTES,
        missing={**left_out, **subject.missing},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    for hidden, subject in subjects(options):
        yield measure_batch(subject, hidden, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_tree_options(parser)
    parser.set_defaults(device="cuda", rounds=5, batches=[1, 10, 25, 64, 256, 1024])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_gpu", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
