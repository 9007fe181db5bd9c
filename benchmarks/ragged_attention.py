"""Claim: training a decoder with attention over ragged sources, plans known, beats padding by hand.

An LSTM encoder and an attending LSTM decoder, source and target lengths of 5 to 100 tokens, one
thread; inference is the loss alone, training adds backward and SGD. By hand the whole batch is
padded: torch's own LSTM on packed sequences, then a decoder over pairs sorted by target length that
leaves ended ones out, with masked attention; also with its step compiled. Penstock plans every
time, and is also timed with the plan of an earlier call on the same lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.baselines.compiled import add_compiled_option, twin_if_wanted
from benchmarks.baselines.seq2seq import Pair, Seq2Seq, made_up_pairs, padded, per_sample
from benchmarks.baselines.training import Forward, descend
from benchmarks.harness import Comparison, compare
from benchmarks.inside import planning_anew
from benchmarks.programs.seq2seq import seq2seq_program
from benchmarks.script import run_script

BY_HAND = "padded by hand"
COMPILED = "padded by hand, compiled step"


def forwards(
    model: Seq2Seq, twin: Seq2Seq | None, pairs: list[Pair], *, eager: bool
) -> dict[str, Forward]:
    """Every way to compute the losses of one batch."""
    program = seq2seq_program(model)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]

    def planned() -> Tensor:
        with planning_anew():
            return program.map(sources, targets, out="stack")  # type: ignore[no-any-return]

    found: dict[str, Forward] = {
        "penstock": planned,
        "penstock, known plan": lambda: program.map(sources, targets, out="stack"),
        BY_HAND: lambda: padded(model, pairs),
    }
    if twin is not None:
        found[COMPILED] = lambda: padded(twin, pairs)
    return {**found, "per sample": lambda: per_sample(model, pairs)} if eager else found


def measure_batch(hidden: int, options: argparse.Namespace) -> Iterator[Comparison]:
    """Inference and training at one size."""
    torch.manual_seed(0)
    model = Seq2Seq(hidden, options.vocabulary)
    shortest, longest = options.lengths
    pairs = made_up_pairs(options.batch, shortest, longest, options.vocabulary, seed=0)
    twin, fault = twin_if_wanted(options, model, "padded_step")
    ways = forwards(model, twin, pairs, eager=options.eager)
    where = f"hidden {hidden}, batch {options.batch}, lengths {shortest} to {longest}"
    kept = {
        "reference": BY_HAND,
        "work": options.batch,
        "unit": "pairs",
        "rounds": options.rounds,
        "missing": {COMPILED: fault} if fault else {},
    }
    with torch.no_grad():
        yield compare(f"Seq2seq inference, {where}", ways, **kept)
    steps = {name: partial(_train, model, forward) for name, forward in ways.items()}
    yield compare(f"Seq2seq training, {where}", steps, **kept)


def _train(model: Seq2Seq, forward: Forward) -> tuple[Tensor, ...]:
    return descend(model, forward().mean())


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes."""
    for hidden in options.hidden:
        yield from measure_batch(hidden, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--lengths", type=int, nargs=2, default=[5, 100])
    add_compiled_option(parser)
    parser.add_argument("--eager", action="store_true", help="also one pair after the other")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("ragged_attention", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
