"""Tree-LSTMs (Tai, Socher, Manning, 2015): for binary trees, and for any number of children.

A model is written for one node of one tree; nodes that are ready share launches, whatever their
tree and depth. What a step needs of a node's token is looked up in an embedding that the user
makes, so vectors may be trained, or fixed by `nn.Embedding.from_pretrained`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import penstock as ps
from penstock.data import Tree

#: h and c of a node.
State = tuple[Tensor, Tensor]


class BinaryTreeLSTM(nn.Module):
    """The state of the root of a binary tree with words at its leaves.

    A leaf with the vector x::

        c = s(W_i x + b_i) * tanh(W_u x + b_u)
        h = s(W_o x + b_o) * tanh(c)

    An inner node, from its children l and r, with z = [h_l; h_r]::

        c = s(U_i z + d_i) * tanh(U_u z + d_u) + s(U_l z + d_l) * c_l + s(U_r z + d_r) * c_r
        h = s(U_o z + d_o) * tanh(c)

    Tokens of inner nodes are not read, and of a node's children only the first two: for other trees
    there is `ChildSumTreeLSTM`.

    Arguments:
        embedding: gives a word its vector.
        hidden: the size of h and c.

    >>> trees = ps.data.random_binary_trees(5, vocabulary=20, seed=0)
    >>> model = BinaryTreeLSTM(nn.Embedding(20, 8), hidden=16)
    >>> ps.map(model, trees, out="stack").shape
    torch.Size([5, 16])
    """

    def __init__(self, embedding: nn.Embedding, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.leaf_gates = nn.Linear(embedding.embedding_dim, 3 * hidden)
        self.cell_gates = nn.Linear(2 * hidden, 5 * hidden)

    @ps.function
    def forward(self, tree: Tree) -> Tensor:  # type: ignore[override]  # a Function, typed as one
        """h of the root."""
        state: State = self.encode(tree, tree.root)
        return state[0]

    @ps.function
    def encode(self, tree: Tree, i: Tensor) -> State:
        """h and c of node i."""
        if tree.is_leaf(i):
            return self.leaf(tree.token[i])
        return self.cell(*self.encode(tree, tree.left(i)), *self.encode(tree, tree.right(i)))

    def leaf(self, token: Tensor) -> State:
        """h and c of a leaf, or of rows of leaves."""
        write, output, candidate = self.leaf_gates(self.embedding(token)).chunk(3, -1)
        c = torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(output) * torch.tanh(c), c

    def cell(self, h_left: Tensor, c_left: Tensor, h_right: Tensor, c_right: Tensor) -> State:
        """h and c of an inner node, or of rows of them, from those of its children."""
        gates = self.cell_gates(torch.cat([h_left, h_right], -1))
        write, keep_left, keep_right, output, candidate = gates.chunk(5, -1)
        c = torch.sigmoid(write) * torch.tanh(candidate)
        c = c + torch.sigmoid(keep_left) * c_left + torch.sigmoid(keep_right) * c_right
        return torch.sigmoid(output) * torch.tanh(c), c


class ChildSumTreeLSTM(nn.Module):
    """The state of the root of a tree with a word at every node and any number of children.

    A node with the vector x and the children k::

        m   = sum of h_k
        f_k = s(W_f x + U_f h_k + b_f)                          for each child
        c   = s(W_i x + U_i m + b_i) * tanh(W_u x + U_u m + b_u) + sum of f_k * c_k
        h   = s(W_o x + U_o m + b_o) * tanh(c)

    Each layer has a bias of its own, so b above is the sum of two.

    Arguments:
        embedding: gives a word its vector.
        hidden: the size of h and c.

    >>> trees = ps.data.random_trees(5, max_arity=4, vocabulary=20, seed=0)
    >>> model = ChildSumTreeLSTM(nn.Embedding(20, 8), hidden=16)
    >>> ps.map(model, trees, out="stack").shape
    torch.Size([5, 16])
    """

    def __init__(self, embedding: nn.Embedding, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden = hidden
        self.word_gates = nn.Linear(embedding.embedding_dim, 3 * hidden)
        self.child_gates = nn.Linear(hidden, 3 * hidden)
        self.word_forget = nn.Linear(embedding.embedding_dim, hidden)
        self.child_forget = nn.Linear(hidden, hidden)

    @ps.function
    def forward(self, tree: Tree) -> Tensor:  # type: ignore[override]  # a Function, typed as one
        """h of the root."""
        words = self.embedding(tree.token)
        # What gates need of words is made for all words of all trees in one launch.
        gates, forget = self.word_gates(words), self.word_forget(words)
        state: tuple[Tensor, ...] = self.encode(tree, gates, forget, tree.root)
        return state[0]

    @ps.function
    def encode(
        self, tree: Tree, gates: Tensor, forget: Tensor, i: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """h and c of node i and its share in its parent's forget gate, from the shares of all words
        in the gates. A node makes its own share, so that adding a child takes no product.
        """

        def leaf() -> tuple[Tensor, Tensor, Tensor]:
            h, c = _state(gates[i] + self.child_gates.bias, None)
            return h, c, self.child_forget(h)

        def inner() -> tuple[Tensor, Tensor, Tensor]:
            def add_child(k: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
                h, c, share = self.encode(tree, gates, forget, tree.child(i, k))
                return k + 1, sums + torch.cat([torch.sigmoid(forget[i] + share) * c, h], -1)

            # Made of a weight, not of words, so that all rows share it.
            zeros = self.child_forget.bias.new_zeros(2 * self.hidden)
            _, sums = ps.while_loop(lambda k, sums: k < tree.arity(i), add_child, (0, zeros))
            kept, h_sum = sums.chunk(2, -1)
            h, c = _state(gates[i] + self.child_gates(h_sum), kept)
            return h, c, self.child_forget(h)

        state: tuple[Tensor, Tensor, Tensor] = ps.cond(tree.is_leaf(i), leaf, inner)
        return state


def _state(gates: Tensor, kept: Tensor | None) -> State:
    write, output, candidate = gates.chunk(3, -1)
    c: Any = torch.sigmoid(write) * torch.tanh(candidate)
    c = c if kept is None else c + kept
    return torch.sigmoid(output) * torch.tanh(c), c
