"""Claim: an LSTM loop of 512 units at batch 512 trains at 0.109 ms an iteration, or faster.

Sequences of one length on a CUDA device, forward and backward, TF32 products. The program of one
sequence is mapped over the batch; a program whose steps have all rows already is one instance.
Beside them: the loop in eager PyTorch, and cuDNN through torch.nn.LSTM. Plans are known, as every
step of training has the same lengths, and every candidate has been called ten times before, so that
they have become CUDA graphs. Does nothing where there is no CUDA device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines import lstm
from benchmarks.baselines.training import Forward, training_step, warm_up
from benchmarks.figures import Figures
from benchmarks.harness import Comparison, by_item, compare
from benchmarks.programs.lstm import looping_lstm, scanned_lstm
from benchmarks.script import run_script

REFERENCE = "eager loop"
LIBRARY = "cuDNN (nn.LSTM)"


PROGRAMS = ("scan, mapped", "scan, one instance", "while, one instance")


def forwards(
    model: lstm.LSTM, library: lstm.LibraryLSTM, steps: Tensor, programs: Sequence[str]
) -> dict[str, Forward]:
    """Every way to the last states; steps come first in `steps`, then sequences."""
    batch = steps.shape[1]
    sequences = steps.transpose(0, 1).contiguous()
    mapped, one, loop = scanned_lstm(model), scanned_lstm(model, batch), looping_lstm(model, batch)
    calls: list[Forward] = [
        lambda: mapped.map(sequences, out="stack"),
        lambda: one(steps),
        lambda: loop(steps),
    ]
    known = dict(zip(PROGRAMS, calls, strict=True))
    return {
        **{f"penstock, {name}": known[name] for name in programs},
        REFERENCE: lambda: lstm.unrolled(model, steps),
        LIBRARY: lambda: library.unrolled(steps),
    }


def measure_length(length: int, options: argparse.Namespace) -> Comparison:
    """One length."""
    torch.manual_seed(0)
    hidden, device = options.hidden, options.device
    model = lstm.LSTM(hidden, hidden).to(device)
    library = lstm.LibraryLSTM(model)
    steps = torch.randn(length, options.batch, hidden, device=device)
    ways = forwards(model, library, steps, options.programs)
    weights = torch.randn(hidden, device=device)
    candidates: dict[str, Callable[[], Any]] = {
        name: partial(training_step, model, forward, weights) for name, forward in ways.items()
    }
    candidates[LIBRARY] = partial(library.training_step, ways[LIBRARY], weights)
    warm_up(candidates.values())
    return compare(
        f"LSTM training, hidden {hidden}, batch {options.batch}, {length} iterations",
        candidates,
        reference=REFERENCE,
        work=length,
        unit="iterations",
        rounds=options.rounds,
        tolerance=2e-2,
        notes={"structure": "none; plans are known, after ten calls of each candidate"},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """All lengths."""
    results = []
    for length in options.lengths:
        results.append(measure_length(length, options))
        yield results[-1]
    yield by_item("milliseconds an iteration", results, units_a_second=1e3)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("lstm_gpu", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
