"""Claim: an LSTM trains past the memory there is, and takes no longer for each iteration.

One layer over sequences of one length, forward and backward, under each memory policy with one
budget for saved values; beside them the loop in eager PyTorch, the same with its saved tensors on
the host (`save_on_cpu`), and the same checkpointed in segments of the square root of its length. On
a GPU torch's allocator is capped at what `--cap` says: who needs more runs out of memory; each
candidate has a process of its own there. Inputs of more than half of the cap stay on the host, and
each step moves its own to the device. `save_on_cpu` keeps a copy of every operand, weights too, in
pinned memory, so that it is left out where these would be more than `--host-cap`. On a CPU values
are swapped to a file. `--full-sizes` takes 512 units at batch 512, of which keeping fills the cap
past about 500 iterations; copies are the limit there. `swap_heavy` shows where they hide.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
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

#: Calls before any is timed: what is kept whole has become a CUDA graph after so many, and `auto`
#: knows by then what calls save.
CALLS = {"penstock, keep": 10, "penstock, auto": 3}

#: Iterations that are run before anything is timed: loops run in windows by then.
WARM = 6000


class FromHost(lstm.LSTM):
    """The same model, whose inputs are on the host."""

    def step(self, state: lstm.State, x: Tensor) -> lstm.State:
        """Move the input where the weights are; the next state."""
        return super().step(state, x.to(self.gates.weight.device, non_blocking=True))


def saved_on_the_host(model: lstm.LSTM, steps: Tensor) -> Tensor:
    """The eager loop, its saved tensors copied to the host."""
    with save_on_cpu(pin_memory=model.gates.weight.is_cuda):
        return lstm.unrolled(model, steps)


def bytes_on_the_host(model: lstm.LSTM, steps: Tensor) -> int:
    """Bytes that the eager loop leaves there."""
    sizes: list[int] = []

    def count(values: Tensor) -> Tensor:
        sizes.append(values.nbytes)
        return values

    with saved_tensors_hooks(count, lambda values: values):
        lstm.unrolled(model, steps)
    return sum(sizes)


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


ON_THE_HOST = "eager loop, save_on_cpu"
BASELINES = {
    "eager loop": lstm.unrolled,
    ON_THE_HOST: saved_on_the_host,
    "eager loop, checkpointed": checkpointed,
}
CANDIDATES = (*(f"penstock, {policy}" for policy in POLICIES), *BASELINES)


class Candidate:
    """One way to train, for all lengths: of each model there is one program."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        torch.manual_seed(0)
        self.weights = torch.randn(options.hidden, device=options.device)
        self.near = lstm.LSTM(options.inputs, options.hidden).to(options.device)
        self.far = FromHost(options.inputs, options.hidden).to(options.device)
        self.far.load_state_dict(self.near.state_dict())
        self.programs = {
            model: scanned_lstm(model, options.batch) for model in (self.near, self.far)
        }

    def model_for(self, length: int) -> lstm.LSTM:
        """The model for sequences of a length: where they are large, they stay on the host."""
        options = self.options
        size = 4 * length * options.batch * options.inputs
        return self.near if options.device == "cpu" or 2 * size <= options.cap else self.far

    def inputs(self, length: int) -> tuple[lstm.LSTM, Tensor]:
        """The model for sequences of a length, and sequences."""
        options, model = self.options, self.model_for(length)
        shape = (length, options.batch, options.inputs)
        draw = torch.Generator(options.device).manual_seed(length)
        if model is self.near:
            return model, torch.randn(shape, generator=draw, device=options.device)
        steps = torch.empty(shape, pin_memory=True)
        for x in steps.unbind(0):
            x.copy_(torch.randn(x.shape, generator=draw, device=options.device))
        return model, steps

    def step(self, model: lstm.LSTM, steps: Tensor) -> tuple[Tensor, ...]:
        """One step of training."""
        return training_step(model, self.forward(model, steps), self.weights)

    def forward(self, model: lstm.LSTM, steps: Tensor) -> Forward:
        """The way to the last states; steps come first in `steps`, then sequences."""
        if self.name in BASELINES:
            return partial(BASELINES[self.name], model, steps)
        return under_policies(lambda: self.programs[model](steps), self.options.budget)[self.name]

    def try_length(self, length: int) -> Trial | None:
        """Train on sequences of a length, which may not even fit beside what earlier ones left."""
        calls = CALLS.get(self.name, 1 if self.name in BASELINES else 2)
        known: list[tuple[lstm.LSTM, Tensor]] = []
        if not self.has_room(length):
            return None

        def step() -> tuple[Tensor, ...]:
            if not known:
                known.append(self.inputs(length))
            return self.step(*known[0])

        return try_alone(step, self.options.device, calls, self.options.rounds)

    def has_room(self, length: int) -> bool:
        """Whether the host has memory for what this candidate leaves there."""
        if self.name != ON_THE_HOST:
            return True
        one = bytes_on_the_host(*self.inputs(1))
        return length * one <= int(self.options.host_cap)

    def warm_up(self) -> None:
        """Train on short sequences as long as it takes until loops run as in the middle."""
        if self.options.device == "cuda" and self.name not in BASELINES:
            length = min(self.options.lengths)
            near = self.inputs(length)[1]
            for model in {self.model_for(length) for length in self.options.lengths}:
                steps = near if model is self.near else near.cpu().pin_memory()
                for _ in range(-(-self.options.warm // length)):
                    self.step(model, steps)


def try_lengths(name: str, options: argparse.Namespace) -> dict[int, Trial | None]:
    """One candidate for all lengths, alone in a process."""
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = options.tf32
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap / total))
    candidate = Candidate(name, options)
    candidate.warm_up()
    trials: dict[int, Trial | None] = {}
    for length in sorted(options.lengths):
        make_room()
        is_lost = None in trials.values()  # longer ones take more
        trials[length] = None if is_lost else candidate.try_length(length)
    return trials


def try_all(options: argparse.Namespace) -> dict[int, dict[str, Trial | None]]:
    """All candidates, one after the other; on a GPU each in a process of its own, from a device
    that nobody has used.
    """
    trials: dict[int, dict[str, Trial | None]] = {length: {} for length in options.lengths}
    for name in options.candidates:
        alone = partial(try_lengths, name, options)
        for length, trial in (in_process(alone) if options.device == "cuda" else alone()).items():
            trials[length][name] = trial
    for found in trials.values():
        agree({name: trial for name, trial in found.items() if trial is not None})
    return trials


def in_process(call: Callable[[], dict[int, Trial | None]]) -> dict[int, Trial | None]:
    """What a call gives that another process makes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.policies"])  # which does not touch the device
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(call).result()


def agree(trials: Mapping[str, Trial]) -> None:
    """Make sure that all who could train have the same gradients."""
    known = {name: partial(_give, trial.result) for name, trial in trials.items()}
    if known:
        check_agreement(known, next(iter(known)), 2e-2, lambda name: None)


def _give(result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result


def terms(trials: Mapping[int, Mapping[str, Trial | None]], options: argparse.Namespace) -> Figures:
    """Both terms of the bound for swapping: what keeping takes, and what copies take alone."""
    bandwidth = bandwidth_of(torch.device(options.device))
    rows = [("measured bandwidth", str(bandwidth))]
    kept = [
        1e3 * median(trial.seconds) / length
        for length, found in trials.items()
        if (trial := found.get("penstock, keep")) is not None
    ]
    for length, found in trials.items():
        swapped = found.get("penstock, swap")
        if swapped is None or not kept:
            continue
        size = saved_bytes(length, options)
        moved = max(0, size - options.budget)
        out, back = (1e3 * moved / length / speed for speed in bandwidth[:2])
        taken = 1e3 * median(swapped.seconds) / length
        bound = max(kept[-1], out + back)
        told = f"compute {rounded(kept[-1])}, copies {rounded(out)} + {rounded(back)}"
        rows.append(
            (
                f"{length:,}: ms an iteration",
                f"{told}; swap {rounded(taken)}, {taken / bound:.3f} times the larger",
            )
        )
    each = saved_bytes(1, options) / 2**20
    rows.append(("MiB that keeping saves an iteration", rounded(each)))
    return Figures("both terms of the bound", ("what", "figure"), tuple(rows))


def saved_bytes(length: int, options: argparse.Namespace) -> int:
    """Bytes that keeping saves: four gates, tanh of c, c, and the operand of the product."""
    floats: int = 7 * options.hidden + options.inputs
    return 4 * length * int(options.batch) * floats


def measure(options: argparse.Namespace) -> Iterator[Figures]:
    """All lengths."""
    if options.full_sizes:
        options.hidden = options.batch = options.inputs = 512
        options.budget, options.cap = 2 << 30, 11 << 29
    yield from measure_lengths(options)


def measure_lengths(options: argparse.Namespace) -> Iterator[Figures]:
    """Milliseconds, memory, and what bounds both."""
    trials = try_all(options)
    title = f"LSTM training, hidden {options.hidden}, batch {options.batch}"

    def milliseconds(length: int, trial: Trial) -> str:
        return rounded(1e3 * median(trial.seconds) / length)

    yield by_length(f"{title}: milliseconds an iteration", trials, milliseconds)
    yield by_length("MiB held at most", trials, lambda _, trial: in_mebibytes(trial.held))
    yield terms(trials, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_common_options(parser)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--budget", type=bytes_of, default="4MiB", help="for saved values")
    parser.add_argument(
        "--full-sizes", action="store_true", help="512 units, batch 512, 2 GiB of 5.5 GiB"
    )


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Those that say what runs, and where."""
    parser.set_defaults(rounds=3, warm=WARM, tf32=True)
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=CANDIDATES)
    parser.add_argument("--cap", type=bytes_of, default="8GiB", help="for all memory of a GPU")
    parser.add_argument(
        "--host-cap", type=bytes_of, default="64GiB", help="for copies of `save_on_cpu`"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("swap_lstm", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
