"""Claim: child-sum Tree-LSTM on pairs is faster than every program batched by hand.

Relatedness of sentence pairs on SICK's dependency trees, or made-up trees like them where
PENSTOCK_DATA does not lead to SICK: embedding 300, similarity hidden 50. The program is a
`ps.function` of one pair; the plain loop over pairs and a program batched by hand by level, which
keeps only live states, compute the same. Level structure is made inside the timed part, and
Penstock plans every time, unless it says that its plan is known. A step of training is forward,
backward and SGD; word vectors are held fixed unless --train-embedding is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.baselines.child_sum import ChildSumTreeLSTM
from benchmarks.baselines.compiled import add_compiled_option, twin_if_wanted
from benchmarks.baselines.products import Products
from benchmarks.baselines.training import Forward
from benchmarks.corpora import PairCorpus, sick
from benchmarks.floor import ProductFloor
from benchmarks.harness import Comparison, compare
from benchmarks.inside import planned_anew
from benchmarks.pair_subject import PairSubject, add_pair_options, pair_model
from benchmarks.peers.process import add_peer_option
from benchmarks.script import run_script

REFERENCE = "by level, needed (b+)"
COMPILED = "by level, needed, compiled (c+)"


def forwards(subject: PairSubject, twin: ChildSumTreeLSTM | None) -> dict[str, Forward]:
    """Every way to compute the log-probabilities."""
    known = subject.known()
    found: dict[str, Forward] = {
        "penstock": planned_anew(known),
        "penstock, known plan": known,
        "per sample (a)": subject.per_sample,
        REFERENCE: subject.by_level,
    }
    return {**found, **({COMPILED: partial(subject.by_level, twin)} if twin is not None else {})}


def measure_batch(
    subject: PairSubject,
    twin: ChildSumTreeLSTM | None,
    mode: str,
    *,
    title: str,
    options: argparse.Namespace,
    missing: dict[str, str],
) -> Comparison:
    """All candidates, training or inferring."""
    training = mode == "training"
    run: Callable[[Forward], Any] = subject.train if training else subject.infer
    calls = {name: partial(run, forward) for name, forward in forwards(subject, twin).items()}
    products = Products(subject.layers())
    with subject.peers(training=training, wanted=options.peers) as (peers, not_started):
        return compare(
            title,
            {**calls, **peers},
            reference=REFERENCE,
            parts={
                "products alone": products.forward_and_backward if training else products.forward
            },
            floor=ProductFloor(subject.layers(), training=training),
            work=len(subject.pairs),
            unit="pairs",
            rounds=options.rounds,
            notes=subject.notes(),
            missing={**missing, **not_started},
        )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All sizes and modes."""
    corpus = sick(max(options.batches))
    for hidden in options.hidden:
        yield from measure_hidden(corpus, hidden, options)


def measure_hidden(
    corpus: PairCorpus, hidden: int, options: argparse.Namespace
) -> Iterator[Comparison]:
    """All batches and modes of one model, compiled once."""
    model = pair_model(corpus, hidden, options)
    twin, fault = twin_if_wanted(options, model.encoder, "level_forward")
    missing = {COMPILED: fault} if fault else {}
    for batch in options.batches:
        subject = PairSubject(model, corpus.pairs[:batch])
        for mode in options.modes:
            title = f"child-sum {mode}, hidden {hidden}, batch {batch} ({corpus.source})"
            yield measure_batch(subject, twin, mode, title=title, options=options, missing=missing)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--hidden", type=int, nargs="+", default=[150, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10, 25, 64, 256])
    add_pair_options(parser)
    add_compiled_option(parser)
    add_peer_option(parser)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("child_sum", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
