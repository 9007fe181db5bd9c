"""The small programs a second time, in plain Python control flow."""

from __future__ import annotations

from collections.abc import Callable

import torch

import penstock as ps
from penstock.data import Tree
from tests.small_programs import Small


def tree_recursion() -> Small:
    """A leaf is embedded, a pair is combined."""
    embedding, combine = torch.nn.Embedding(10, 4), torch.nn.Linear(8, 4)

    @ps.function
    def encode(tree, i):
        if tree.is_leaf(i):
            return embedding(tree.token[i])
        children = [encode(tree, tree.left(i)), encode(tree, tree.right(i))]
        return torch.tanh(combine(torch.cat(children)))

    tree = Tree.from_nested(((7, 8), 9))
    return Small(encode, (tree, tree.root))


def data_dependent_loop() -> Small:
    """Newton's iteration for square roots: the predicate is computed as data and read back."""

    @ps.function
    def newton(a):
        x = a
        while (x * x - a).norm() > 1e-6:
            x = (x + a / x) / 2
        return x

    return Small(newton, (torch.tensor([2.0, 3.0]),))


def nested_loops() -> Small:
    """The inner count depends on the outer variable, and the inner loop reads outer data."""

    @ps.function
    def triangle(x, n):
        i, total = 0, x
        while i < n:
            sum_ = total
            for _ in range(i):
                sum_ = sum_ + x * total
            i, total = i + 1, torch.sin(sum_)
        return total

    return Small(triangle, (torch.ones(3), 3))


def switch_of_three() -> Small:
    """Branches that compute, that pass a value on, and that return a constant."""

    @ps.function
    def choose(x, k):
        return [lambda: x * 2, lambda: x, lambda: torch.zeros(2)][k]()

    return Small(choose, (torch.ones(2), 1))


def map_with_array() -> Small:
    """A for-each over a sequence, and an array that is written in a counted loop."""

    @ps.function
    def reverse_squares(xs):
        squares = torch.stack([x * x for x in xs])
        n = len(xs)
        array = ps.TensorArray(n)
        for i in range(n):
            array = array.write(n - 1 - i, squares[i])
        return array.stack()

    return Small(reverse_squares, (torch.ones(4),))


def random_walk() -> Small:
    """A loop that draws random numbers."""

    @ps.function
    def walk(x, n):
        y = x
        for _ in range(n):
            y = torch.dropout(y, 0.5, True)
        return y

    return Small(walk, (torch.ones(3), 2))


SMALL_PYTHON: dict[str, Callable[[], Small]] = {
    build.__name__: build
    for build in (
        tree_recursion,
        data_dependent_loop,
        nested_loops,
        switch_of_three,
        map_with_array,
        random_walk,
    )
}
