"""Recursion over trees: Tree-LSTMs, and a loop inside a recursion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import penstock as ps
from penstock.data.made_up import random_binary_trees, random_trees
from penstock.data.tree import Tree
from tests.semantics.programs.cells import LSTMState, TreeLSTM
from tests.semantics.table import Case, Maker, table_program

HIDDEN = 4
TOKENS = 11


def binary_trees(seed: int) -> list[Tree]:
    """Small trees, a lone leaf among them."""
    trees = random_binary_trees(7, leaves=(1, 9), mean=5, spread=3, vocabulary=TOKENS, seed=seed)
    return [Tree.from_nested(3), Tree.from_nested(((1, 2), (3, 4))), *trees]


@table_program(torch.float32, torch.float64, torch.bfloat16)
def binary_tree_lstm(make: Maker) -> Case:
    """A binary Tree-LSTM over three index tensors; the state is a NamedTuple."""
    cell = TreeLSTM(make, TOKENS, HIDDEN)

    def plain(left: Tensor, right: Tensor, token: Tensor, i: Any) -> LSTMState:
        if left[i] < 0:
            return cell.leaf(token[i])
        return cell.inner(plain(left, right, token, left[i]), plain(left, right, token, right[i]))

    @ps.function
    def traced(left: Tensor, right: Tensor, token: Tensor, i: Any) -> LSTMState:
        return ps.cond(
            left[i] < 0,
            lambda: cell.leaf(token[i]),
            lambda: cell.inner(
                traced(left, right, token, left[i]), traced(left, right, token, right[i])
            ),
        )

    return Case(plain, traced, [as_index_tensors(tree) for tree in binary_trees(1)])


def as_index_tensors(tree: Tree) -> tuple[Tensor, Tensor, Tensor, int]:
    """Left child, right child (-1 at leaves) and token of every node, and the root."""
    left = torch.full_like(tree.token, -1)
    right = torch.full_like(tree.token, -1)
    for i in range(len(tree)):
        if not tree.is_leaf(i):
            left[i], right[i] = tree.left(i), tree.right(i)
    return left, right, tree.token.clamp(min=0), int(tree.root)


class ChildSum(nn.Module):
    """A child-sum Tree-LSTM for any arity, plain and as methods that are `ps.function`s."""

    def __init__(self, make: Maker) -> None:
        super().__init__()
        self.embedding = nn.Parameter(make.normal(TOKENS, HIDDEN))
        self.gates = nn.Parameter(make.normal(2 * HIDDEN, 3 * HIDDEN, scale=0.5))
        self.forget = nn.Parameter(make.normal(2 * HIDDEN, HIDDEN, scale=0.5))

    def start(self) -> dict[str, Tensor]:
        zeros = self.embedding.new_zeros(HIDDEN)
        return {"h": zeros, "c": zeros}

    def add_child(self, x: Tensor, total: Any, child: Any) -> dict[str, Tensor]:
        forget = torch.sigmoid(torch.cat([x, child["h"]]) @ self.forget)
        return {"h": total["h"] + child["h"], "c": total["c"] + forget * child["c"]}

    def finish(self, x: Tensor, total: Any) -> dict[str, Tensor]:
        take, out, new = (torch.cat([x, total["h"]]) @ self.gates).chunk(3)
        c = torch.sigmoid(take) * torch.tanh(new) + total["c"]
        return {"h": torch.sigmoid(out) * torch.tanh(c), "c": c}

    def plain(self, tree: Tree, i: Any) -> dict[str, Tensor]:
        x = self.embedding[tree.token[i]]
        total = self.start()
        for k in range(int(tree.arity(i))):
            total = self.add_child(x, total, self.plain(tree, tree.child(i, k)))
        return self.finish(x, total)

    @ps.function
    def node(self, tree: Tree, i: Any) -> dict[str, Tensor]:
        x = self.embedding[tree.token[i]]

        def step(k: Tensor, total: Any) -> tuple[Tensor, Any]:
            return k + 1, self.add_child(x, total, self.node(tree, tree.child(i, k)))

        _, total = ps.while_loop(lambda k, _: k < tree.arity(i), step, (0, self.start()))
        return self.finish(x, total)


@table_program(torch.float32, torch.float64)
def child_sum_tree_lstm(make: Maker) -> Case:
    """A child-sum Tree-LSTM over `ps.data.Tree` with 0 to 20 children; the state is a dict."""
    module = ChildSum(make)
    trees = random_trees(5, max_arity=4, nodes=(2, 12), vocabulary=TOKENS, seed=2)
    trees += [Tree.from_nested(5), Tree.from_nested(tuple(range(7)) * 2, inner=0)]
    trees.append(Tree.from_nested((tuple(range(10)) * 2, 1, (2, 3, (4,))), inner=1))
    instances = [(tree, tree.root) for tree in trees]
    return Case(module.plain, module.node, instances, dict(module.named_parameters()))


@table_program()
def loop_in_recursion(make: Maker) -> Case:
    """Every inner node of a tree runs a loop whose length is its own token."""
    weight = make.weight("weight", HIDDEN, HIDDEN)
    embedding = make.weight("embedding", TOKENS, HIDDEN)

    def turn(x: Tensor) -> Tensor:
        return torch.tanh(x @ weight)

    def plain(tree: Tree, i: Any) -> Tensor:
        if tree.is_leaf(i):
            return embedding[tree.token[i]]
        x = plain(tree, tree.left(i)) - plain(tree, tree.right(i))
        for _ in range(int(tree.token[i])):
            x = turn(x)
        return x

    @ps.function
    def traced(tree: Tree, i: Any) -> Tensor:
        def inner() -> Tensor:
            start = traced(tree, tree.left(i)) - traced(tree, tree.right(i))
            _, x = ps.while_loop(
                lambda k, x: k < tree.token[i], lambda k, x: (k + 1, turn(x)), (0, start)
            )
            return x

        return ps.cond(tree.is_leaf(i), lambda: embedding[tree.token[i]], inner)

    trees = [with_inner_tokens(make, tree) for tree in binary_trees(3)]
    return Case(plain, traced, [(tree, tree.root) for tree in trees])


def with_inner_tokens(make: Maker, tree: Tree) -> Tree:
    """The tree with a token from 0 to 3 at each inner node."""
    token = torch.where(tree.token < 0, make.integers(0, 4, len(tree)), tree.token)
    return Tree(token, tree.start, tree.children, tree.root)
