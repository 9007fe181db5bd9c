"""The child-sum Tree-LSTM over one batch of sentence pairs, and ways to run it, for two scripts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmarks.baselines import child_sum
from benchmarks.baselines.products import Layer
from benchmarks.baselines.segments import Segments, forest_arrays, segments_of
from benchmarks.baselines.training import Forward, descend
from benchmarks.corpora import PairCorpus
from benchmarks.peers.process import Peer, parameters_in, peers_for
from benchmarks.programs.child_sum import relatedness_program
from penstock.data.sick import SentencePair

MODES = ("training", "inference")


def pair_model(
    corpus: PairCorpus, hidden: int, options: argparse.Namespace
) -> child_sum.Relatedness:
    """The same weights for every batch size."""
    torch.manual_seed(0)
    return child_sum.Relatedness(
        corpus.vocabulary,
        options.embedding,
        hidden,
        options.similarity,
        trains_embedding=options.train_embedding,
    )


class PairSubject:
    """A model, a batch of pairs, and what the ways to run them share."""

    def __init__(self, model: child_sum.Relatedness, pairs: list[SentencePair]) -> None:
        self.model, self.pairs = model, pairs
        self.sentences = child_sum.sentences_of(pairs)
        self.targets = child_sum.targets_of(pairs)
        #: The left tree of each pair, and the right ones.
        self.sides = [pair.left for pair in pairs], [pair.right for pair in pairs]

    def known(self) -> Forward:
        """A ps.function, which finds the plan of the call before."""
        program = relatedness_program(self.model)
        return lambda: program.map(*self.sides, out="stack")

    def per_sample(self) -> Tensor:
        """One pair after the other."""
        return child_sum.per_sample(self.model, self.sentences)

    def segments(self) -> Segments:
        """The level structure of this batch."""
        return segments_of([*self.sides[0], *self.sides[1]])

    def by_level(self, encoder: child_sum.ChildSumTreeLSTM | None = None) -> Tensor:
        """By hand, structure and all."""
        return child_sum.by_level(self.model, self.segments(), encoder)

    def layers(self) -> list[Layer]:
        """The products of one run."""
        return child_sum.layers(self.model, self.segments())

    @contextmanager
    def peers(
        self, *, training: bool, wanted: bool
    ) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
        """Other systems at the same work, and those that could not be started."""
        arrays = {**parameters_in(self.model), **forest_arrays([*self.sides[0], *self.sides[1]])}
        problem = {**arrays, "targets": self.targets.numpy(), "training": training}
        with peers_for("pairs", problem, wanted=wanted) as found:
            yield found

    def notes(self) -> dict[str, str]:
        """What a reader must know, and how many words of a side are distinct: Penstock computes
        equal words of a side once where that pays, all others and the floor as often as they occur.
        """
        words = [torch.cat([tree.token for tree in side]) for side in self.sides]
        counts = " and ".join(f"{len(torch.unique(side)):,} among {len(side):,}" for side in words)
        return {
            "structure": "timed for every candidate but `known plan`, whose pairs were seen",
            "distinct words": f"batch {len(self.pairs)} has {counts}, the floor all",
        }

    def train(self, forward: Forward) -> tuple[Tensor, ...]:
        """Forward, backward and SGD: the loss and the gradients."""
        return descend(self.model, child_sum.loss_of(forward(), self.targets))

    def infer(self, forward: Forward) -> Tensor:
        """Forward alone."""
        with torch.no_grad():
            return forward()


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    """The sizes that both scripts have."""
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--embedding", type=int, default=300)
    parser.add_argument("--similarity", type=int, default=50)
    parser.add_argument("--train-embedding", action="store_true", help="train word vectors too")
