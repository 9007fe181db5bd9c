"""Claim: the layers of an 8-layer LSTM on two devices train faster than on one.

Each device has a thread of its own and runs some of the layers; a layer works on one step while
the next layer works on the step before. Beside it the same program on one device, and the loop in
eager PyTorch. Training is forward, backward and SGD. Planning is timed where several devices run
the program, as placed programs plan every call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.baselines.lstm import LSTM
from benchmarks.baselines.training import Forward, training_step
from benchmarks.harness import Comparison, compare
from benchmarks.programs.pipeline import stacked_lstm
from benchmarks.script import run_script

REFERENCE = "penstock"


def places(layers: Sequence[object], devices: Sequence[str]) -> list[str]:
    """Neighbouring layers on one device, about as many on each."""
    return [devices[layer * len(devices) // len(layers)] for layer in range(len(layers))]


def by_hand(layers: Sequence[LSTM], rows: Tensor) -> Tensor:
    """All sequences at once, in eager PyTorch."""
    states = [layer.start(len(rows)) for layer in layers]
    for x in rows.unbind(1):
        for number, layer in enumerate(layers):
            states[number] = layer.step(states[number], x)
            x = states[number][0]
    return states[-1][0]


class Subject:
    """The layers, the sequences, and all ways to train the one on the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.layers = [LSTM(options.hidden, options.hidden) for _ in range(options.layers)]
        self.rows = torch.randn(options.batch, options.length, options.hidden)
        self.weights = torch.randn(options.hidden)

    def steps(self, options: argparse.Namespace) -> dict[str, Callable[[], object]]:
        """One step of training each."""
        open_: list[str | None] = [None] * len(self.layers)
        found = {REFERENCE: self._step(self.layers, open_)}
        for count in options.devices:
            devices = [f"cpu:{number}" for number in range(count)]
            found[f"{count} CPU devices"] = self._step(self.layers, places(open_, devices))
        if options.device == "cuda":
            mixed = places(open_, ["cpu:0", "cuda:0"])
            found["CPU and CUDA"] = self._step(self._moved(mixed), mixed)
            alone = places(open_, ["cuda:0"])
            found["CUDA"] = self._step(self._moved(alone), alone)
        eager = partial(by_hand, self.layers, self.rows)
        found["eager, by hand"] = partial(self._train, self.layers, eager)
        return found

    def _step(self, layers: Sequence[LSTM], devices: Sequence[str | None]) -> Callable[[], object]:
        program = stacked_lstm(layers, devices)
        return partial(self._train, layers, partial(program.map, self.rows, out="stack"))

    def _moved(self, devices: Sequence[str]) -> list[LSTM]:
        """Copies of the layers on devices."""
        pairs = zip(self.layers, devices, strict=True)
        return [deepcopy(layer).to(device.replace("cpu:0", "cpu")) for layer, device in pairs]

    def _train(self, layers: Sequence[LSTM], forward: Forward) -> list[Tensor]:
        made = training_step(nn.ModuleList(layers), lambda: forward().cpu(), self.weights)
        return [tensor.cpu() for tensor in made]


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """Training with the layers on one device and on several."""
    yield compare(
        f"{options.layers} layers of {options.hidden}, {options.batch} sequences of "
        f"{options.length}, training",
        Subject(options).steps(options),
        reference=REFERENCE,
        unit="training steps",
        rounds=options.rounds,
        tolerance=2e-2 if options.device == "cuda" else 1e-4,
        notes={"structure": "planning is timed, but for one device"},
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--devices", type=int, nargs="+", default=[2], help="CPU devices")
    parser.add_argument(
        "--cuda",
        dest="device",
        action="store_const",
        const="cuda",
        help="also half on cuda:0, and all",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("pipeline_lstm", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
