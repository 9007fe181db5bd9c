"""Claim: Tree-LSTM training on a GPU is 5 times as fast as hand-batched code, on fresh structure.

A binary Tree-LSTM (embedding 300) on CUDA, forward and backward, or forward alone for inference;
TF32 products, as training code uses them. A fresh structure is planned at every step, by the
hand-batched programs under torch autograd as well. The bound is a schedule made by hand, with
arenas and a backward pass written out, captured in one CUDA graph: it costs the host nothing, and
it runs for these trees only. A known plan has been run ten times before. Batches "from a loader"
were prepared beforehand by what a DataLoader's workers would call (`f.collate`, or levels by hand);
no loader runs, and preparing is not timed. Does nothing where there is no CUDA device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines.arena import ArenaSchedule, CapturedCall
from benchmarks.baselines.products import Products
from benchmarks.baselines.training import Forward, loss_and_gradients, warm_up
from benchmarks.harness import Comparison, compare
from benchmarks.script import run_script
from benchmarks.tree_subject import (
    KNOWN,
    LOADED,
    REFERENCE,
    TreeSubject,
    add_tree_options,
    subjects,
)
from penstock.plan.planners import load_native

BOUND = "one CUDA graph"
READY = "arena by hand, plan ready"

#: Trees from which on the per-sample program is left out.
MANY = 100

NOTES = {
    "structure": "timed, but not for `known plan`, `plan ready`, what a loader has prepared "
    "and the bound, which have it ready",
    "bound": "the schedule `arena by hand` in one CUDA graph",
}


def candidates_of(subject: TreeSubject, weights: Tensor | None) -> dict[str, Callable[[], Any]]:
    """Every way that does not need a CUDA graph: to the loss and the gradients, or to the roots
    where there are no weights of a loss.
    """
    schedule = subject.schedule()

    def run(forward: Forward) -> Any:
        if weights is None:
            return forward()
        return loss_and_gradients(subject.model, forward, weights)

    def run_schedule(schedule: ArenaSchedule) -> Any:
        return schedule.infer() if weights is None else schedule.train(weights)

    ways = {**subject.forwards(), **subject.loaded()}
    if len(subject.trees) > MANY:
        del ways["per sample (a)"]
    return {
        **{name: partial(run, forward) for name, forward in ways.items()},
        "arena by hand (d)": lambda: run_schedule(subject.schedule()),
        READY: lambda: run_schedule(schedule),
    }


def measure_batch(subject: TreeSubject, hidden: int, mode: str, rounds: int) -> Comparison:
    """One batch size, in training or inference."""
    batch, training = len(subject.trees), mode == "training"
    device = subject.model.leaf_gates.weight.device
    candidates = candidates_of(subject, torch.randn(hidden, device=device) if training else None)
    candidates[BOUND] = CapturedCall(candidates[READY])
    warm_up([candidates[name] for name in ("penstock", LOADED, KNOWN)])
    products = Products(subject.layers(), device)
    left_out = {"per sample (a)": f"slow, see batches up to {MANY}"} if batch > MANY else {}
    return compare(
        f"Tree-LSTM {mode} on a GPU, hidden {hidden}, batch {batch}",
        candidates,
        reference=REFERENCE,
        parts={"products alone": products.forward_and_backward if training else products.forward},
        bound=BOUND,
        work=batch,
        unit="trees",
        rounds=rounds,
        tolerance=2e-2,
        notes=NOTES,
        missing={**left_out, **subject.missing},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    load_native()  # as in a process that has planned for a while
    for hidden, subject in subjects(options):
        for mode in options.modes:
            with torch.set_grad_enabled(mode == "training"):
                result = measure_batch(subject, hidden, mode, options.rounds)
            yield result


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_tree_options(parser)
    modes = ("training", "inference")
    parser.add_argument("--modes", nargs="+", choices=modes, default=list(modes))
    parser.set_defaults(device="cuda", rounds=5, batches=[1, 10, 25, 64, 256, 1024])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_gpu", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
