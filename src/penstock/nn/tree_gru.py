"""A GRU along the branches of a tree, for any number of children.

The sums over children are a loop that adds one child at a time: children that are ready share
launches, whatever their node and tree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import penstock as ps
from penstock.data import Tree


class TreeGRU(nn.Module):
    """The state of the root of a tree with a word at every node and any number of children.

    A node with the vector x and the children k::

        m   = sum of h_k
        r_k = s(W_r x + U_r h_k + b_r)                          for each child
        z   = s(W_z x + U_z m + b_z)
        n   = tanh(W_n x + U_n (sum of r_k * h_k) + b_n)
        h   = z * m + (1 - z) * n

    On a chain of nodes this is a GRU whose reset gate works before the product.

    Arguments:
        embedding: gives a word its vector.
        hidden: the size of h.

    >>> trees = ps.data.random_trees(5, max_arity=4, vocabulary=20, seed=0)
    >>> model = TreeGRU(nn.Embedding(20, 8), hidden=16)
    >>> ps.map(model, trees, out="stack").shape
    torch.Size([5, 16])
    """

    def __init__(self, embedding: nn.Embedding, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden = hidden
        self.word_gates = nn.Linear(embedding.embedding_dim, 3 * hidden)
        self.child_reset = nn.Linear(hidden, hidden, bias=False)
        self.sum_update = nn.Linear(hidden, hidden, bias=False)
        self.sum_candidate = nn.Linear(hidden, hidden, bias=False)

    @ps.function
    def forward(self, tree: Tree) -> Tensor:  # type: ignore[override]  # a Function, typed as one
        """h of the root."""
        h: Tensor = self.encode(tree, self.word_gates(self.embedding(tree.token)), tree.root)
        return h

    @ps.function
    def encode(self, tree: Tree, gates: Tensor, i: Tensor) -> Tensor:
        """h of node i, from what words give to the gates of their nodes."""
        reset, update, candidate = gates[i].chunk(3)
        if tree.is_leaf(i):
            return (1 - torch.sigmoid(update)) * torch.tanh(candidate)
        # Made of a weight, not of words, so that all rows share it.
        h_sum = reset_sum = self.child_reset.weight.new_zeros(self.hidden)
        for k in range(tree.arity(i)):
            h = self.encode(tree, gates, tree.child(i, k))
            h_sum = h_sum + h
            reset_sum = reset_sum + torch.sigmoid(reset + self.child_reset(h)) * h
        z = torch.sigmoid(update + self.sum_update(h_sum))
        return z * h_sum + (1 - z) * torch.tanh(candidate + self.sum_candidate(reset_sum))
