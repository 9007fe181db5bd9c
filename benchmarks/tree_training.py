"""Claim: Tree-LSTM training is faster than every program batched by hand, near the floor.

Forward, backward and an SGD step on a binary Tree-LSTM (embedding 300), random binary trees of 10
to 60 leaves. A fresh batch has a fresh structure, so the level structure of the hand-batched
programs is made inside the timed part, and Penstock plans every time; it is also timed with the
plan of an earlier call on the same trees. The floor is the operations of the products over the best
rate of products in the same run. Peers run too where they are installed (benchmarks/peers).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines.products import Products
from benchmarks.baselines.training import descend_along, training_step
from benchmarks.floor import ProductFloor
from benchmarks.harness import Comparison, compare
from benchmarks.peers.process import add_peer_option
from benchmarks.script import run_script
from benchmarks.tree_subject import (
    REFERENCE,
    TreeSubject,
    add_tree_options,
    subjects,
)


def candidates_of(subject: TreeSubject, weights: Tensor) -> dict[str, Callable[[], Any]]:
    """One step of each."""

    def by_arena() -> tuple[Tensor, ...]:
        return descend_along(subject.model, *subject.schedule().train(weights))

    steps: dict[str, Callable[[], Any]] = {
        name: partial(training_step, subject.model, forward, weights)
        for name, forward in subject.forwards().items()
    }
    return {**steps, "arena by hand (d)": by_arena}


def measure_batch(subject: TreeSubject, hidden: int, options: argparse.Namespace) -> Comparison:
    """One batch size."""
    weights, batch = torch.randn(hidden), len(subject.trees)
    with subject.peers(weights, training=True, wanted=options.peers) as (peers, not_started):
        return compare(
            f"Tree-LSTM training, hidden {hidden}, batch {batch}",
            {**candidates_of(subject, weights), **peers},
            reference=REFERENCE,
            parts={"products alone": Products(subject.layers()).forward_and_backward},
            floor=ProductFloor(subject.layers(), training=True),
            work=batch,
            unit="trees",
            rounds=options.rounds,
            notes=subject.notes(),
            missing={**subject.missing, **not_started},
        )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    for hidden, subject in subjects(options):
        yield measure_batch(subject, hidden, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes, and what to run beside."""
    add_tree_options(parser)
    add_peer_option(parser)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_training", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
