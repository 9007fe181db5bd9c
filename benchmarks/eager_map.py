"""Claim: child-sum Tree-LSTM code that nobody changed trains 8 times as fast under ps.map.

Relatedness of sentence pairs on SICK's dependency trees, or made-up trees like them where
PENSTOCK_DATA does not lead to SICK: hidden 150, embedding 300, similarity hidden 50. The reference
is the plain loop over the pairs. The same code runs under `ps.map` at each granularity; beside it
are the same model as a `ps.function` and a program batched by hand, whose level structure is made
inside the timed part. A step of training is forward, backward and SGD; word vectors are held fixed,
as in the paper, unless --train-embedding is given. Last comes where the time of each map goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from benchmarks.baselines import child_sum
from benchmarks.baselines.training import Forward, descend
from benchmarks.breakdown import PARTS, break_down
from benchmarks.corpora import PairCorpus, sick
from benchmarks.figures import Figures, rounded
from benchmarks.harness import Comparison, compare
from benchmarks.pair_subject import PairSubject, add_pair_options, pair_model
from benchmarks.script import run_script

GRANULARITIES = ("op", "module", "graph", "auto")
REFERENCE = "per sample"
HEADINGS = ("candidate", "steps", "launches", "mean width", *PARTS, "recording us a step")


class Subject(PairSubject):
    """A model and a batch of pairs, with all ways to run one over the other."""

    def __init__(self, corpus: PairCorpus, batch: int, options: argparse.Namespace) -> None:
        super().__init__(pair_model(corpus, options.hidden, options), corpus.pairs[:batch])
        self.maps = self._maps(options.granularities)

    def _maps(self, granularities: Sequence[str]) -> dict[str, Forward]:
        columns = [list(side) for side in zip(*self.sentences, strict=True)]
        found: dict[str, Forward] = {
            f"ps.map, {name}": partial(_map_eagerly, self.model, columns, name)
            for name in granularities
        }
        return {**found, "ps.function": self.known()}

    def forwards(self) -> dict[str, Forward]:
        """Every way to compute the log-probabilities."""
        return {REFERENCE: self.per_sample, **self.maps, "by hand: by level": self.by_level}

    def gradients(self, output: Tensor) -> Any:
        """Backward alone."""
        return descend(self.model, child_sum.loss_of(output, self.targets))


def _map_eagerly(model: child_sum.Relatedness, columns: list[Any], granularity: str) -> Tensor:
    rows: list[Tensor] = ps.map(model, *columns, granularity=granularity)
    return torch.cat(rows)


def measure_batch(subject: Subject, mode: str, source: str, rounds: int) -> Comparison:
    """All candidates, training or inferring."""
    run: Callable[[Forward], Any] = subject.train if mode == "training" else subject.infer
    return compare(
        f"child-sum {mode}, batch {len(subject.pairs)}",
        {name: partial(run, forward) for name, forward in subject.forwards().items()},
        reference=REFERENCE,
        work=len(subject.pairs),
        unit="pairs",
        rounds=rounds,
        notes={"trees": source, "level structure by hand": "timed"},
    )


def break_down_batch(subject: Subject, mode: str, rounds: int) -> Figures:
    """Where the time of each map goes."""
    rows = []
    for name, forward in subject.maps.items():
        if mode == "training":
            parts = break_down(forward, rounds=rounds, backward=subject.gradients)
        else:
            parts = break_down(partial(subject.infer, forward), rounds=rounds)
        counts = (f"{parts.steps:,.0f}", f"{parts.launches:,.0f}", rounded(parts.width))
        recording = rounded(parts.recording_microseconds) if parts.recording else "-"
        rows.append((name, *counts, *parts.milliseconds(), recording))
    caption = "medians of profiled calls, whose plans are known; backward includes SGD"
    return Figures(f"{mode}, batch {len(subject.pairs)}", HEADINGS, tuple(rows), caption)


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """All batch sizes and modes, then where the time goes."""
    corpus = sick(max(options.batches))
    breakdowns = []
    for batch in options.batches:
        subject = Subject(corpus, batch, options)
        for mode in options.modes:
            yield measure_batch(subject, mode, corpus.source, options.rounds)
            breakdowns.append(break_down_batch(subject, mode, options.rounds))
    yield from breakdowns


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[25, 256])
    parser.add_argument(
        "--granularities", nargs="+", choices=GRANULARITIES, default=list(GRANULARITIES)
    )
    parser.add_argument("--hidden", type=int, default=150)
    add_pair_options(parser)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("eager_map", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
