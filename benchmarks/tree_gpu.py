"""Claim: Tree-LSTM training on a GPU is 5 times as fast as hand-batched code, on fresh structure.

A binary Tree-LSTM (embedding 300) on CUDA, forward and backward, or forward alone for inference;
TF32 products, as training code uses them. A fresh structure is planned at every step, by the
hand-batched programs under torch autograd as well. The bound is a schedule made by hand, with
arenas and a backward pass written out, captured in one CUDA graph: it costs the host nothing, and
it runs for these trees only. A known plan has been run twenty times before. Batches "from a loader"
were prepared beforehand by what a DataLoader's workers would call (`f.collate`, or levels by hand);
no loader runs, and preparing is not timed. With a "loader at work" one runs: its processes read
and plan later batches while earlier ones train, which takes cores of their own; a round takes far
more batches than it has ready. In bfloat16 all run under autocast; programs whose backward pass is
written by hand are left out, and so is the per-sample one, which adds up gradients in bfloat16.
`--large` adds training of 1,024 trees at hidden 1,024. Does nothing where there is no CUDA device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias

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
    LOADING,
    READY,
    REFERENCE,
    WORKERS,
    TreeSubject,
    add_tree_options,
    subjects,
)
from penstock.plan.planners import load_native

BOUND = "one CUDA graph"
PREPARED = "arena by hand, plan ready"

#: Trees from which on the per-sample program is left out.
MANY = 100

#: Calls before any is timed: a plan that always comes is a CUDA graph of its own after so many.
CALLS = 20

#: Seconds of one candidate in one round.
LEAST_SECONDS = 0.3

NOTES = {
    "structure": "timed, but not for `known plan`, `plan ready`, what a loader has prepared "
    "and the bound, which have it ready; a loader at work prepares it in other processes",
    "loader": f"{WORKERS} processes, {WORKERS * READY} batches ready when a round begins",
    "bound": "the schedule `arena by hand` in one CUDA graph",
}


Candidates: TypeAlias = dict[str, Callable[[], Any]]


def by_autograd(subject: TreeSubject, weights: Tensor | None, *, is_half: bool) -> Candidates:
    """Every way that torch differentiates: to the loss and the gradients, or to the roots where
    there are no weights of a loss; under autocast where they are to have half the bits.
    """

    device = subject.model.leaf_gates.weight.device.type

    def run(forward: Forward) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=is_half):
            if weights is None:
                return forward()
            return loss_and_gradients(subject.model, forward, weights)

    ways = {**subject.forwards(), **subject.loaded(), LOADING: subject.loading()}
    if len(subject.trees) > MANY or is_half:
        del ways["per sample (a)"]
    return {name: partial(run, forward) for name, forward in ways.items()}


def by_schedule(subject: TreeSubject, weights: Tensor | None) -> Candidates:
    """Ways with a schedule and a backward pass made by hand; one is a CUDA graph."""
    schedule = subject.schedule()

    def run(schedule: ArenaSchedule) -> Any:
        return schedule.infer() if weights is None else schedule.train(weights)

    ready = partial(run, schedule)
    return {
        "arena by hand (d)": lambda: run(subject.schedule()),
        PREPARED: ready,
        BOUND: CapturedCall(ready),
    }


def measure_batch(
    subject: TreeSubject, hidden: int, mode: str, precision: str, rounds: int
) -> Comparison:
    """One batch size, in training or inference."""
    batch, training = len(subject.trees), mode == "training"
    is_half = precision == "bfloat16"
    device = subject.model.leaf_gates.weight.device
    weights = torch.randn(hidden, device=device) if training else None
    candidates = by_autograd(subject, weights, is_half=is_half)
    parts: Candidates = {}
    if not is_half:
        candidates |= by_schedule(subject, weights)
        products = Products(subject.layers(), device)
        run_products = products.forward_and_backward if training else products.forward
        parts = {"products alone": run_products}
    warm_up([candidates[name] for name in ("penstock", LOADED, LOADING, KNOWN)], CALLS)
    left_out = {}
    if batch > MANY or is_half:
        left_out = {"per sample (a)": f"slow or imprecise, see batches up to {MANY} in tf32"}
    return compare(
        f"Tree-LSTM {mode} on a GPU, hidden {hidden}, batch {batch}, {precision}",
        candidates,
        reference=REFERENCE,
        parts=parts,
        bound=None if is_half else BOUND,
        work=batch,
        unit="trees",
        rounds=rounds,
        least_seconds=LEAST_SECONDS,
        tolerance=0.1 if is_half else 2e-2,
        notes=NOTES,
        missing={**left_out, **subject.missing},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    load_native()  # as in a process that has planned for a while
    yield from measure_sizes(options)
    if options.large:
        large = {"hidden": [1024], "batches": [1024], "modes": ["training"]}
        yield from measure_sizes(argparse.Namespace(**(vars(options) | large)))


def measure_sizes(options: argparse.Namespace) -> Iterator[Comparison]:
    """All hidden sizes with all batches, modes and precisions."""
    for hidden, subject in subjects(options):
        for mode, precision in product(options.modes, options.precisions):
            with torch.set_grad_enabled(mode == "training"):
                result = measure_batch(subject, hidden, mode, precision, options.rounds)
            yield result


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_tree_options(parser)
    modes = ("training", "inference")
    parser.add_argument("--modes", nargs="+", choices=modes, default=list(modes))
    precisions = ("tf32", "bfloat16")
    parser.add_argument("--precisions", nargs="+", choices=precisions, default=list(precisions))
    parser.add_argument("--large", action="store_true", help="also 1,024 trees at hidden 1,024")
    parser.set_defaults(device="cuda", rounds=5, batches=[1, 10, 25, 64, 256, 1024])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("tree_gpu", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
