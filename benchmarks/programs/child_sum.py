"""The child-sum Tree-LSTM of `penstock.nn` as a program for one pair of trees."""

from __future__ import annotations

from typing import Any

import penstock as ps
from benchmarks.baselines.child_sum import Relatedness
from penstock.data import Tree


def relatedness_program(model: Relatedness) -> ps.Function:
    """A function of two trees: log-probabilities of the scores."""

    def root(tree: Tree) -> Any:
        words = model.embedding(tree.token)
        gates, forget = model.encoder.word_gates(words), model.encoder.word_forget(words)
        return model.encoder.encode(tree, gates, forget, tree.root)[0].unsqueeze(0)

    @ps.function
    def relatedness(left: Tree, right: Tree) -> Any:
        return model.similarity(root(left), root(right)).squeeze(0)

    return relatedness
