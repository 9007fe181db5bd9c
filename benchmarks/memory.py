"""Claim: a training step of a loop keeps no more than eager autograd; x[t] takes linear time.

Kept memory is counted in bytes, when forward has ended and backward has not begun, as it is highest
then: the storages that autograd or the tape hold, each once, without weights and inputs. "every
result" is what a machine would hold that stacks each temporary. The second part takes gradients
through a loop that indexes its input: for eager autograd each x[t] has a gradient of the size of x.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import penstock as ps
from benchmarks.baselines import lstm
from benchmarks.baselines.training import Forward
from benchmarks.figures import Figures, rounded
from benchmarks.harness import Comparison, compare
from benchmarks.inside import storage_bytes, taped_tensors
from benchmarks.programs.lstm import lstm_program
from benchmarks.script import run_script

HEADINGS = ("candidate", "MiB kept", "KiB a step", "times eager, shrinking batch")


class Results(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the result of every operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        leaves = _pytree.tree_leaves(made)
        self.tensors += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return made


def kept_bytes(forward: Forward, without: Sequence[Tensor]) -> int:
    """What forward leaves for backward, on autograd's graph and on tapes."""
    forward()  # what is built at the first call is no part of a step
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = forward()
    return storage_bytes([*saved, *taped_tensors(output)], without=without)


def made_bytes(forward: Forward, without: Sequence[Tensor]) -> int:
    """The results of all operations."""
    with Results() as results:
        forward()
    return storage_bytes(results.tensors, without=without)


def kept_by_lstm(longest: int, batch: int, hidden: int) -> Figures:
    """An LSTM over sequences of up to a length."""
    torch.manual_seed(0)
    model = lstm.LSTM(hidden, hidden)
    sequences = lstm.random_sequences(batch, (longest // 20, longest), hidden, seed=0)
    program = lstm_program(model)
    own = [*model.parameters(), *sequences]

    def eagerly() -> Tensor:
        return lstm.shrinking(model, sequences)

    kept = {
        "penstock": kept_bytes(lambda: program.map(sequences, out="stack"), own),
        "eager, per sample": kept_bytes(lambda: lstm.per_sample(model, sequences), own),
        "eager, shrinking batch": kept_bytes(eagerly, own),
        "every result, shrinking batch": made_bytes(eagerly, own),
    }
    steps, reference = sum(map(len, sequences)), kept["eager, shrinking batch"]
    rows = [
        (name, *map(rounded, (size / 2**20, size / 2**10 / steps, size / reference)))
        for name, size in kept.items()
    ]
    title = f"LSTM, hidden {hidden}, {batch} sequences of up to {longest}, {steps:,} steps"
    return Figures(title, HEADINGS, tuple(rows))


@ps.function
def decayed(x: Tensor) -> Any:
    """A loop that indexes its input."""
    return ps.while_loop(
        lambda t, h: t < x.shape[0],
        lambda t, h: (t + 1, torch.tanh(0.5 * h + x[t])),
        (0, torch.zeros(x.shape[1])),
    )[1]


def _decayed_eagerly(x: Tensor) -> Tensor:
    """The same for all instances, which are along the second dimension."""
    h = torch.zeros(x.shape[1:])
    for t in range(len(x)):
        h = torch.tanh(0.5 * h + x[t])
    return h


def indexing(length: int, batch: int, width: int, rounds: int) -> Comparison:
    """Forward and backward through a loop over x[t]."""
    torch.manual_seed(0)
    x = torch.randn(batch, length, width, requires_grad=True)
    weights = torch.randn(batch, width)

    def ours() -> Tensor:
        return _gradient(decayed.map(x, out="stack"), x, weights)

    def eager() -> Tensor:
        return _gradient(_decayed_eagerly(x.transpose(0, 1)), x, weights)

    return compare(
        f"gradient of a loop over x[t], {length:,} steps",
        {"penstock": ours, "eager, all instances at once": eager},
        reference="eager, all instances at once",
        work=length,
        unit="steps",
        rounds=rounds,
    )


def _gradient(output: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    return torch.autograd.grad(output, x, weights)[0]


def growth(results: Sequence[Comparison]) -> Figures:
    """How many times as long each length takes as the one before."""
    names = [entry.name for entry in results[0].measurements]
    lengths = [result.work for result in results]
    rows = []
    for name in names:
        rates = [result[name].rate.middle for result in results]
        seconds = [length / rate for length, rate in zip(lengths, rates, strict=True)]
        rows.append((name, *(rounded(b / a) for a, b in pairwise(seconds))))
    headings = [f"{b:,} over {a:,}" for a, b in pairwise(lengths)]
    return Figures("growth of the time", ("candidate", *headings), tuple(rows))


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """Bytes, then the time of indexing."""
    for longest in options.lengths:
        yield kept_by_lstm(longest, options.batch, options.hidden)
    results = []
    for length in options.indexed_lengths:
        results.append(indexing(length, options.batch, options.width, options.rounds))
        yield results[-1]
    yield growth(results)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--indexed-lengths", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--width", type=int, default=16, help="elements of each x[t]")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("memory", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
