"""The recursive neural tensor network (Socher and others, 2013) for binary trees."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import penstock as ps
from penstock.data import Tree


class RecursiveTensorNet(nn.Module):
    """The vector of the root of a binary tree with words at its leaves.

    A leaf has the vector of its word. An inner node, from its children l and r with z = [l; r]::

        h_k = tanh(z' V_k z + W_k z + b_k)                      for each of the d elements

    where V is d matrices of 2d by 2d. Tokens of inner nodes are not read, and of a node's children
    only the first two.

    Arguments:
        embedding: gives a word its vector, of d elements.

    >>> trees = ps.data.random_binary_trees(5, vocabulary=20, seed=0)
    >>> ps.map(RecursiveTensorNet(nn.Embedding(20, 8)), trees, out="stack").shape
    torch.Size([5, 8])
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        size = embedding.embedding_dim
        self.embedding = embedding
        self.linear = nn.Linear(2 * size, size)
        self.tensor = nn.Parameter(torch.empty(size, 2 * size, 2 * size))
        nn.init.uniform_(self.tensor, -1 / (4 * size), 1 / (4 * size))

    @ps.function
    def forward(self, tree: Tree) -> Tensor:  # type: ignore[override]  # a Function, typed as one
        """The vector of the root."""
        vector: Tensor = self.encode(tree, tree.root)
        return vector

    @ps.function
    def encode(self, tree: Tree, i: Tensor) -> Tensor:
        """The vector of node i."""
        if tree.is_leaf(i):
            return self.embedding(tree.token[i])  # type: ignore[no-any-return]
        return self.cell(self.encode(tree, tree.left(i)), self.encode(tree, tree.right(i)))

    def cell(self, left: Tensor, right: Tensor) -> Tensor:
        """The vector of an inner node, from those of its children."""
        pair = torch.cat([left, right])
        size, doubled, _ = self.tensor.shape
        # One product with all matrices side by side, which rows of a launch share.
        products = nn.functional.linear(pair, self.tensor.reshape(size * doubled, doubled))
        quadratic = products.view(size, doubled) @ pair
        return torch.tanh(quadratic + self.linear(pair))
