"""Claim: the layers of an 8-layer LSTM on two devices train faster than on one.

Each device has a thread of its own and runs some of the layers; a layer works on one step while
the next layer works on the step before. Beside it the same program on one device, and the loop in
eager PyTorch. Training is forward, backward and SGD. Planning is timed where several devices run
the program, as placed programs plan every call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.baselines.lstm import LSTM
from benchmarks.baselines.training import Forward, training_step
from benchmarks.harness import Comparison, compare
from benchmarks.programs.pipeline import stacked_lstm
from benchmarks.script import run_script

REFERENCE = "penstock"


def places(layers: int, devices: Sequence[str]) -> list[str]:
    """Neighbouring layers on one device, about as many on each."""
    return [devices[layer * len(devices) // layers] for layer in range(layers)]


def by_hand(layers: Sequence[LSTM], rows: Tensor) -> Tensor:
    """All sequences at once, in eager PyTorch."""
    states = [layer.start(len(rows)) for layer in layers]
    for x in rows.unbind(1):
        for number, layer in enumerate(layers):
            states[number] = layer.step(states[number], x)
            x = states[number][0]
    return states[-1][0]


def forwards(
    layers: Sequence[LSTM], rows: Tensor, options: argparse.Namespace
) -> dict[str, Forward]:
    """Every way to the last states."""
    open_: list[str | None] = [None] * len(layers)
    programs = {REFERENCE: stacked_lstm(layers, open_)}
    for count in options.devices:
        devices = [f"cpu:{number}" for number in range(count)]
        programs[f"{count} CPU devices"] = stacked_lstm(layers, places(len(layers), devices))
    if options.cuda:
        mixed = places(len(layers), ["cpu:0", "cuda:0"])
        programs["CPU and CUDA"] = stacked_lstm(layers, mixed)
    found: dict[str, Forward] = {
        name: partial(program.map, rows, out="stack") for name, program in programs.items()
    }
    return {**found, "eager, by hand": lambda: by_hand(layers, rows)}


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """Training with the layers on one device and on several."""
    torch.manual_seed(0)
    layers = [LSTM(options.hidden, options.hidden) for _ in range(options.layers)]
    rows = torch.randn(options.batch, options.length, options.hidden)
    weights = torch.randn(options.hidden)
    model = nn.ModuleList(layers)
    steps: dict[str, Callable[[], object]] = {
        name: partial(training_step, model, forward, weights)
        for name, forward in forwards(layers, rows, options).items()
    }
    yield compare(
        f"{options.layers} layers of {options.hidden}, {options.batch} sequences of "
        f"{options.length}, training",
        steps,
        reference=REFERENCE,
        unit="training steps",
        rounds=options.rounds,
        notes={"structure": "planning is timed, but for one device"},
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--devices", type=int, nargs="+", default=[2], help="CPU devices")
    parser.add_argument("--cuda", action="store_true", help="also half on a CPU, half on cuda:0")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("pipeline_lstm", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
