"""Claim: an LSTM over sequences of 5 to 100 steps is as fast as a shrinking batch by hand.

Hidden and inputs 256, 64 sequences, the state after each one's last step. The program is written
for one sequence, through `ps.scan` and as a plain `while`. Beside it: the loop by hand whose batch
shrinks as sequences end, also with a compiled step, the loop that pads all to the longest under a
mask, torch.nn.LSTM on packed sequences, and one sequence after the other. Sorting, packing and
padding are inside the timed part, and so is planning unless the plan is known. Training is forward,
backward and SGD.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines import lstm
from benchmarks.baselines.compiled import add_compiled_option, twin_if_wanted
from benchmarks.baselines.products import Products
from benchmarks.baselines.training import Forward, training_step
from benchmarks.floor import ProductFloor
from benchmarks.harness import Comparison, compare
from benchmarks.inside import planned_anew
from benchmarks.programs.lstm import looping_lstm, scanned_lstm
from benchmarks.script import run_script

REFERENCE = "shrinking batch by hand"
COMPILED = "shrinking batch, compiled cell"
LIBRARY = "nn.LSTM, packed"


class Subject:
    """A model, a batch of sequences, and all ways to run one over the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        inputs, hidden = options.inputs or options.hidden, options.hidden
        self.model = lstm.LSTM(inputs, hidden).to(options.device)
        drawn = lstm.random_sequences(options.batch, tuple(options.lengths), inputs, seed=0)
        self.sequences = [sequence.to(options.device) for sequence in drawn]
        self.weights = torch.randn(hidden, device=options.device)
        self.library = lstm.LibraryLSTM(self.model)
        self.twin, fault = twin_if_wanted(options, self.model, "step", device=options.device)
        self.missing = {COMPILED: fault} if fault else {}

    def forwards(self) -> dict[str, Forward]:
        """Every way to the last states."""
        model, sequences, twin = self.model, self.sequences, self.twin
        scan, loop = scanned_lstm(model), looping_lstm(model)

        def scanned() -> Tensor:
            return scan.map(sequences, out="stack")  # type: ignore[no-any-return]

        def looped() -> Tensor:
            return loop.map(sequences, out="stack")  # type: ignore[no-any-return]

        found: dict[str, Forward] = {
            "penstock, scan": planned_anew(scanned),
            "penstock, while": planned_anew(looped),
            "penstock, scan, known plan": scanned,
            "penstock, while, known plan": looped,
            REFERENCE: lambda: lstm.shrinking(model, sequences),
            "masked loop by hand": lambda: lstm.masked(model, sequences),
            LIBRARY: lambda: self.library.packed(sequences),
            "per sample": lambda: lstm.per_sample(model, sequences),
        }
        if twin is not None:
            found[COMPILED] = lambda: lstm.shrinking(twin, sequences)
        return found

    def training_steps(self) -> dict[str, Callable[[], Any]]:
        """One step of training each."""
        forwards = self.forwards()
        steps: dict[str, Callable[[], Any]] = {
            name: partial(training_step, self.model, forward, self.weights)
            for name, forward in forwards.items()
        }
        packed = partial(self.library.training_step, forwards[LIBRARY], self.weights)
        return {**steps, LIBRARY: packed}


def measure_mode(subject: Subject, training: bool, options: argparse.Namespace) -> Comparison:
    """Training or inference."""
    lengths = [len(sequence) for sequence in subject.sequences]
    layers, on_cpu = lstm.layers(subject.model, lengths), options.device == "cpu"
    products = Products(layers, options.device)
    alone = products.forward_and_backward if training else products.forward
    mode, size = "training" if training else "inference", options.hidden
    steps = f"{min(lengths)} to {max(lengths)}"
    return compare(
        f"LSTM {mode}, hidden {size}, {len(lengths)} sequences of {steps}",
        subject.training_steps() if training else subject.forwards(),
        reference=REFERENCE,
        parts={"products alone": alone},
        bound=None if on_cpu else "products alone",
        floor=ProductFloor(layers, training=training) if on_cpu else None,
        unit="steps",
        rounds=options.rounds,
        tolerance=1e-4 if on_cpu else 2e-2,
        notes={"structure": "timed: sorting, packing, padding; planning unless the plan is known"},
        missing=subject.missing,
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """Training, then inference."""
    subject = Subject(options)
    if "training" in options.modes:
        yield measure_mode(subject, True, options)
    if "inference" in options.modes:
        with torch.no_grad():
            yield measure_mode(subject, False, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    modes = ("training", "inference")
    parser.add_argument("--modes", nargs="+", choices=modes, default=list(modes))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--inputs", type=int, help="as hidden unless given")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs=2, default=[5, 100])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    add_compiled_option(parser)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("lstm", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
