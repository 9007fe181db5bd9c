"""Claim: an LSTM trains past the memory there is, and takes no longer for each iteration.

One layer over sequences of one length, forward and backward, under each memory policy with one
budget for saved values; beside them the loop in eager PyTorch, the same with its saved tensors on
the host (`save_on_cpu`), and the same checkpointed in segments of the square root of its length. On
a GPU torch's allocator is capped at what `--cap` says: who needs more runs out of memory. On a CPU
values are swapped to a file. `--full-sizes` takes 512 units at batch 512, of which keeping fills
the cap past about 600 iterations. Where copies are to hide, the body must be heavy: products grow
with the square of `--hidden`, saved values do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from benchmarks.agreement import check_agreement
from benchmarks.baselines import lstm
from benchmarks.baselines.training import Forward, training_step
from benchmarks.figures import Figures, rounded
from benchmarks.policies import (
    POLICIES,
    Trial,
    by_length,
    in_mebibytes,
    make_room,
    try_alone,
    under_policies,
)
from benchmarks.programs.lstm import scanned_lstm
from benchmarks.script import run_script
from penstock.run.memory.costs import bandwidth_of
from penstock.run.memory.policy import bytes_of

#: Calls before any is timed: plans that repeat have become CUDA graphs, and `auto` knows what calls
#: save. Plans of loops that are longer than this are not kept.
CALLS, LONG = 10, 1000


def saved_on_the_host(model: lstm.LSTM, steps: Tensor) -> Tensor:
    """The eager loop, its saved tensors copied to the host."""
    with save_on_cpu(pin_memory=steps.is_cuda):
        return lstm.unrolled(model, steps)


def checkpointed(model: lstm.LSTM, steps: Tensor) -> Tensor:
    """The eager loop in segments that run again in backward."""

    def segment(h: Tensor, c: Tensor, part: Tensor) -> lstm.State:
        state = h, c
        for x in part.unbind(0):
            state = model.step(state, x)
        return state

    state = model.start(steps.shape[1])
    for part in torch.split(steps, max(1, round(len(steps) ** 0.5))):
        state = checkpoint(segment, *state, part, use_reentrant=False)
    return state[0]


def forward_of(name: str, model: lstm.LSTM, steps: Tensor, budget: int) -> Forward:
    """One way to the last states; steps come first in `steps`, then sequences."""
    if name.startswith("penstock"):
        program = scanned_lstm(model, steps.shape[1])
        return under_policies(lambda: program(steps), budget)[name]
    return partial(BASELINES[name], model, steps)


BASELINES = {
    "eager loop": lstm.unrolled,
    "eager loop, save_on_cpu": saved_on_the_host,
    "eager loop, checkpointed": checkpointed,
}
CANDIDATES = (*(f"penstock, {policy}" for policy in POLICIES), *BASELINES)


def measure_length(length: int, options: argparse.Namespace) -> dict[str, Trial | None]:
    """All candidates for one length, one after the other."""
    torch.manual_seed(0)
    model = lstm.LSTM(options.inputs, options.hidden).to(options.device)
    steps = torch.randn(length, options.batch, options.inputs, device=options.device)
    weights = torch.randn(options.hidden, device=options.device)
    calls = CALLS if length <= LONG else 2
    trials: dict[str, Trial | None] = {}
    for name in options.candidates:
        forward = forward_of(name, model, steps, options.budget)
        candidate = partial(training_step, model, forward, weights)
        trials[name] = try_alone(candidate, options.device, calls, options.rounds)
        del forward, candidate
        make_room()
    results = {name: trial.result for name, trial in trials.items() if trial is not None}
    known = {name: partial(_give, result) for name, result in results.items()}
    if known:
        check_agreement(known, next(iter(known)), 2e-2, lambda name: None)
    return trials


def _give(result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result


def terms(trials: Mapping[int, Mapping[str, Trial | None]], options: argparse.Namespace) -> Figures:
    """Both terms of the bound for swapping: what keeping takes, and what copies take alone."""
    bandwidth = bandwidth_of(torch.device(options.device))
    rows = [("measured bandwidth", str(bandwidth))]
    for length, found in trials.items():
        kept = found.get("penstock, keep")
        if kept is not None and kept.held is not None:
            size = saved_bytes(length, options)
            compute = 1e3 * min(kept.seconds) / length
            out, back = (1e3 * size / length / speed for speed in bandwidth[:2])
            rows += [
                (f"{length:,}: MiB saved an iteration", rounded(size / length / 2**20)),
                (f"{length:,}: ms an iteration, keep", rounded(compute)),
                (f"{length:,}: ms to copy it out and back", f"{rounded(out)} + {rounded(back)}"),
                (f"{length:,}: bound for swap", rounded(max(compute, out + back))),
            ]
    return Figures("both terms", ("what", "figure"), tuple(rows))


def saved_bytes(length: int, options: argparse.Namespace) -> int:
    """Bytes that keeping saves: four gates, tanh of c, c, and the operand of the product."""
    floats: int = 7 * options.hidden + options.inputs
    return 4 * length * int(options.batch) * floats


def measure(options: argparse.Namespace) -> Iterator[Figures]:
    """All lengths."""
    if options.full_sizes:
        options.hidden = options.batch = options.inputs = 512
        options.budget, options.cap = 2 << 30, 6 << 30
    if options.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap / total))
    trials = {length: measure_length(length, options) for length in options.lengths}
    title = f"LSTM training, hidden {options.hidden}, batch {options.batch}"

    def milliseconds(length: int, trial: Trial) -> str:
        return rounded(1e3 * median(trial.seconds) / length)

    yield by_length(f"{title}: milliseconds an iteration", trials, milliseconds)
    yield by_length("MiB held at most", trials, lambda _, trial: in_mebibytes(trial.held))
    yield terms(trials, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=3)
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=CANDIDATES)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--budget", type=bytes_of, default="4MiB", help="for saved values")
    parser.add_argument("--cap", type=bytes_of, default="8GiB", help="for all memory of a GPU")
    parser.add_argument(
        "--full-sizes", action="store_true", help="512 units, batch 512, 2 GiB of 6 GiB"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("swap_lstm", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
