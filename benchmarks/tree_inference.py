"""Claim: Tree-LSTM inference is faster than every program batched by hand, near the floor.

A binary Tree-LSTM (embedding 300), random binary trees of 10 to 60 leaves, without gradients. The
level structure of the hand-batched programs is made inside the timed part, as a fresh batch has a
fresh structure. Penstock is timed both ways: planning every time, and with the plan of an earlier
call on the same trees. The floor is as in tree_training.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from benchmarks.baselines.products import Products
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


@torch.no_grad()
def measure_batch(subject: TreeSubject, hidden: int, options: argparse.Namespace) -> Comparison:
    """One batch size."""
    weights, batch = torch.randn(hidden), len(subject.trees)
    with subject.peers(weights, training=False, wanted=options.peers) as (peers, not_started):
        by_arena = {"arena by hand (d)": lambda: subject.schedule().infer()}
        return compare(
            f"Tree-LSTM inference, hidden {hidden}, batch {batch}",
            {**subject.forwards(), **by_arena, **peers},
            reference=REFERENCE,
            parts={"products alone": Products(subject.layers()).forward},
            floor=ProductFloor(subject.layers(), training=False),
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
    run_script("tree_inference", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
