"""Claim: an LSTM trains past the memory there is, and takes no longer for each iteration.

One layer over sequences of one length, forward and backward, under each memory policy with one
budget for saved values; beside them the loop in eager PyTorch, the same with its saved tensors on
the host (`save_on_cpu`), and the same checkpointed in segments of the square root of its length. On
a GPU torch's allocator is capped at what `--cap` says: who needs more runs out of memory. On a CPU
values are swapped to a file. `--full-sizes` takes lengths up to 10,000 of 512 units at batch 512,
with a cap that keeping exceeds past about 500 iterations.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from benchmarks.baselines import lstm
from benchmarks.baselines.training import Forward, training_step
from benchmarks.figures import Figures, rounded
from benchmarks.harness import Comparison, compare
from benchmarks.policies import by_length, in_mebibytes, most_bytes, split_by_memory, under_policies
from benchmarks.programs.lstm import scanned_lstm
from benchmarks.script import run_script
from penstock.run.memory.costs import bandwidth_of
from penstock.run.memory.policy import bytes_of

REFERENCE = "penstock, recompute"

FULL_LENGTHS = [100, 200, 500, 600, 700, 900, 1000, 2000, 5000, 10000]


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


def forwards(model: lstm.LSTM, steps: Tensor, budget: int) -> dict[str, Forward]:
    """Every way to the last states; steps come first in `steps`, then sequences."""
    program = scanned_lstm(model, steps.shape[1])
    return {
        **under_policies(lambda: program(steps), budget),
        "eager loop": lambda: lstm.unrolled(model, steps),
        "eager loop, save_on_cpu": lambda: saved_on_the_host(model, steps),
        "eager loop, checkpointed": lambda: checkpointed(model, steps),
    }


def measure_length(
    length: int, options: argparse.Namespace
) -> tuple[Comparison, dict[str, int | None]]:
    """One length: times, and bytes held at most."""
    torch.manual_seed(0)
    model = lstm.LSTM(options.inputs, options.hidden).to(options.device)
    steps = torch.randn(length, options.batch, options.inputs, device=options.device)
    weights = torch.randn(options.hidden, device=options.device)
    ways = forwards(model, steps, options.budget)
    able, unable = split_by_memory(ways, lambda forward: training_step(model, forward, weights))
    held = {name: most_bytes(candidate, options.device) for name, candidate in able.items()}
    result = compare(
        f"LSTM training, hidden {options.hidden}, batch {options.batch}, {length} iterations",
        able,
        reference=REFERENCE,
        work=length,
        unit="iterations",
        rounds=options.rounds,
        tolerance=2e-2,
        notes={"structure": "none; plans are known", "budget": f"{options.budget:,} bytes"},
        missing=unable,
    )
    return result, held


def bounds(options: argparse.Namespace, saved: int, length: int) -> Figures:
    """What copies of all saved values would take alone."""
    bandwidth = bandwidth_of(torch.device(options.device))
    rows = [
        ("MiB saved an iteration", rounded(saved / length / 2**20)),
        ("measured bandwidth", str(bandwidth)),
        ("ms an iteration to copy it out", rounded(1e3 * saved / length / bandwidth.out)),
        ("ms an iteration to copy it back", rounded(1e3 * saved / length / bandwidth.back)),
    ]
    return Figures("copies alone", ("what", "figure"), tuple(rows))


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """All lengths."""
    if options.full_sizes:
        options.lengths, options.hidden, options.batch = FULL_LENGTHS, 512, 512
        options.budget, options.cap = 2 << 30, 4 << 30
    if options.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap / total))
    results: dict[int, Comparison] = {}
    held: dict[int, dict[str, int | None]] = {}
    for length in options.lengths:
        results[length], held[length] = measure_length(length, options)
        yield results[length]
    numbers = {id(result): length for length, result in results.items()}

    def milliseconds(result: Comparison, name: str) -> str:
        return rounded(1e3 * median(result[name].seconds) / result.work)

    def mebibytes(result: Comparison, name: str) -> str:
        return in_mebibytes(held[numbers[id(result)]][name])

    yield by_length("milliseconds an iteration", results, milliseconds)
    yield by_length("MiB held at most", results, mebibytes)
    kept = held[options.lengths[0]].get("penstock, keep")
    if kept is not None:
        yield bounds(options, kept, options.lengths[0])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--budget", type=bytes_of, default="4MiB", help="for saved values")
    parser.add_argument("--cap", type=bytes_of, default="8GiB", help="for all memory of a GPU")
    parser.add_argument(
        "--full-sizes", action="store_true", help="up to 10,000 iterations, 512 units"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("swap_lstm", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
