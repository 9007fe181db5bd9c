"""The binary Tree-LSTM of the baselines as a program for one tree."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import penstock as ps
from benchmarks.baselines.tree_lstm import TreeLSTM
from penstock.data import Tree


def tree_program(model: TreeLSTM) -> ps.Function:
    """A function of one tree: the state h of its root."""

    @ps.function
    def encode(tree: Tree, i: Tensor) -> Any:
        def inner(i: Tensor) -> Any:
            return model.cell(*encode(tree, tree.left(i)), *encode(tree, tree.right(i)))

        return ps.cond(tree.is_leaf(i), lambda i: model.leaf(tree.token[i]), inner, (i,))

    @ps.function
    def root(tree: Tree) -> Any:
        return encode(tree, tree.root)[0]

    return root
