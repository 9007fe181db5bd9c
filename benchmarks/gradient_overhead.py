"""Claim: backward costs no more, relative to forward, than in eager and hand-batched programs.

A loop (LSTM over 64 sequences), a recursion (Tree-LSTM over trees) and branches (layers of two
kinds, chosen by a computed gate). The two halves are timed inside the same steps. A relative cost
says nothing about speed, so whole steps are compared as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from benchmarks.baselines import branching, lstm, tree_lstm
from benchmarks.baselines.levels import needed_levels_of
from benchmarks.baselines.training import Forward, loss_of
from benchmarks.figures import Figures, Spread, rounded
from benchmarks.harness import Comparison, compare, wait_for_devices
from benchmarks.programs.branching import branching_program
from benchmarks.programs.lstm import lstm_program
from benchmarks.script import run_script
from penstock.data import random_binary_trees

HEADINGS = ("candidate", "forward ms", "backward ms", "backward / forward")


@dataclass(frozen=True)
class Subject:
    """A model and the ways to run it over one batch."""

    title: str
    model: nn.Module
    weights: Tensor
    forwards: dict[str, Forward]


def loop_subject(batch: int, hidden: int) -> Subject:
    """An LSTM over sequences of 5 to 60 steps."""
    model = lstm.LSTM(hidden, hidden)
    sequences = lstm.random_sequences(batch, (5, 60), hidden, seed=0)
    program = lstm_program(model)
    return Subject(
        f"loop: LSTM, hidden {hidden}, {batch} sequences",
        model,
        torch.randn(hidden),
        {
            "penstock": lambda: program.map(sequences, out="stack"),
            "eager, per sample": lambda: lstm.per_sample(model, sequences),
            "by hand: shrinking batch": lambda: lstm.shrinking(model, sequences),
        },
    )


def tree_subject(batch: int, hidden: int) -> Subject:
    """A binary Tree-LSTM."""
    model = tree_lstm.TreeLSTM(hidden=hidden)
    trees = random_binary_trees(batch, seed=0)
    nodes = [tree.to_nodes() for tree in trees]
    program = model.forward
    return Subject(
        f"tree: Tree-LSTM, hidden {hidden}, {batch} trees",
        model,
        torch.randn(hidden),
        {
            "penstock": lambda: program.map(trees, out="stack"),
            "eager, per sample": lambda: tree_lstm.per_sample(model, nodes),
            "by hand: by level, needed": lambda: tree_lstm.by_level_needed(
                model, needed_levels_of(trees)
            ),
        },
    )


def branch_subject(batch: int, hidden: int) -> Subject:
    """Eight layers of two kinds."""
    model = branching.BranchingLayers(depth=8, width=hidden)
    rows = torch.randn(batch, hidden)
    program = branching_program(model)
    return Subject(
        f"branch: 8 layers of width {hidden}, {batch} rows",
        model,
        torch.randn(hidden),
        {
            "penstock": lambda: program.map(rows, out="stack"),
            "eager, per sample": lambda: branching.per_sample(model, rows),
            "by hand: grouped": lambda: branching.grouped(model, rows),
        },
    )


SUBJECTS: dict[str, Callable[[int, int], Subject]] = {
    "loop": loop_subject,
    "tree": tree_subject,
    "branch": branch_subject,
}


class Step:
    """A training step that times its two halves at every call."""

    def __init__(self, model: nn.Module, forward: Forward, weights: Tensor) -> None:
        self.parameters = list(model.parameters())
        self.forward, self.weights = forward, weights
        #: Seconds of each call: forward, backward.
        self.halves: list[tuple[float, float]] = []

    def __call__(self) -> tuple[Tensor, ...]:
        begin = _now()
        loss = loss_of(self.forward, self.weights)
        middle = _now()
        gradients = torch.autograd.grad(loss, self.parameters)
        self.halves.append((middle - begin, _now() - middle))
        return loss, *gradients

    def figures(self) -> tuple[str, ...]:
        """Medians over all calls but the first two, which may have to build something."""
        forward, backward = zip(*self.halves[2:], strict=True)
        relative = Spread.of([late / early for early, late in self.halves[2:]])
        middles = [1e3 * median(seconds) for seconds in (forward, backward)]
        return (*map(rounded, middles), str(relative))


def _now() -> float:
    wait_for_devices()
    return perf_counter()


def measure_subject(subject: Subject, rounds: int) -> tuple[Comparison, Figures]:
    """Whole steps of all candidates, and their halves."""
    steps = {
        name: Step(subject.model, forward, subject.weights)
        for name, forward in subject.forwards.items()
    }
    by_hand = list(steps)[-1]
    result = compare(subject.title, steps, reference=by_hand, unit="steps", rounds=rounds)
    rows = tuple((name, *step.figures()) for name, step in steps.items())
    return result, Figures(subject.title, HEADINGS, rows)


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """Whole steps of each subject, then the halves of all."""
    lines = []
    for name in options.programs:
        torch.manual_seed(0)
        subject = SUBJECTS[name](options.batch, options.hidden)
        result, halves = measure_subject(subject, options.rounds)
        lines.append(halves)
        yield result
    yield from lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=7)
    parser.add_argument("--programs", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("gradient_overhead", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
