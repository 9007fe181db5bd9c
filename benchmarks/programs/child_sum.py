"""The child-sum Tree-LSTM of the baselines as a program for one pair of trees.

The sums over children, of which there may be any number, are a loop that adds one child at a time:
all children that are ready, of all nodes and pairs, share a launch. What a word's gates need of its
vector is made for whole sentences at once; what its forget gates need, only for words that have
children.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import penstock as ps
from benchmarks.baselines.child_sum import ChildSumTreeLSTM, Relatedness
from penstock.data import Tree


def relatedness_program(model: Relatedness) -> ps.Function:
    """A function of two trees: log-probabilities of the scores."""
    encode = _encoder(model.encoder)

    def root(tree: Tree) -> Any:
        words = model.embedding(tree.token)
        return encode(tree, words, model.encoder.word_gates(words), tree.root)[1].unsqueeze(0)

    @ps.function
    def relatedness(left: Tree, right: Tree) -> Any:
        return model.similarity(root(left), root(right)).squeeze(0)

    return relatedness


def _encoder(encoder: ChildSumTreeLSTM) -> ps.Function:
    """A function of a tree, its word vectors, their share in the gates, and a node: c and h."""

    @ps.function
    def encode(tree: Tree, words: Tensor, gates: Tensor, i: Tensor) -> Any:
        def leaf() -> Any:
            return _state(gates[i] + encoder.child_gates.bias, None)

        def inner() -> Any:
            forget = encoder.word_forget(words[i])

            def add_child(k: Tensor, kept: Tensor, h_sum: Tensor) -> Any:
                c, h = encode(tree, words, gates, tree.child(i, k))
                keep = torch.sigmoid(forget + encoder.child_forget(h))
                return k + 1, kept + keep * c, h_sum + h

            # Made of a weight, not of words, so that all rows share it.
            zeros = encoder.child_forget.bias.new_zeros(encoder.hidden)
            _, kept, h_sum = ps.while_loop(
                lambda k, kept, h_sum: k < tree.arity(i), add_child, (0, zeros, zeros)
            )
            return _state(gates[i] + encoder.child_gates(h_sum), kept)

        return ps.cond(tree.is_leaf(i), leaf, inner)

    return encode


def _state(gates: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    write, output, new = gates.chunk(3, -1)
    c = torch.sigmoid(write) * torch.tanh(new)
    c = c if kept is None else c + kept
    return c, torch.sigmoid(output) * torch.tanh(c)
