"""Small programs that between them have every kind of control flow, with arguments for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import penstock as ps
from penstock.data import Tree
from penstock.ir.graph import Graph
from penstock.ir.program import Program


class Small(NamedTuple):
    """A program and the arguments of one instance."""

    traced: Any
    arguments: tuple[Any, ...]

    @property
    def program(self) -> Program:
        return self.traced.program(*self.arguments)

    @property
    def graph(self) -> Graph:
        return self.traced.graph(*self.arguments)


def tree_recursion() -> Small:
    """A leaf is embedded, a pair is combined."""
    embedding, combine = torch.nn.Embedding(10, 4), torch.nn.Linear(8, 4)

    @ps.function
    def encode(tree, i):
        return ps.cond(
            tree.is_leaf(i),
            lambda: embedding(tree.token[i]),
            lambda: torch.tanh(
                combine(torch.cat([encode(tree, tree.left(i)), encode(tree, tree.right(i))]))
            ),
        )

    tree = Tree.from_nested(((7, 8), 9))
    return Small(encode, (tree, tree.root))


def data_dependent_loop() -> Small:
    """Newton's iteration for square roots: the predicate is computed as data and read back."""

    @ps.function
    def newton(a):
        return ps.while_loop(
            lambda x: (x * x - a).norm() > 1e-6,
            lambda x: (x + a / x) / 2,
            a,
            maximum_iterations=50,
        )

    return Small(newton, (torch.tensor([2.0, 3.0]),))


def nested_loops() -> Small:
    """The inner count depends on the outer variable, and the inner loop reads outer data."""

    @ps.function
    def triangle(x, n):
        def row(i, total):
            inner = ps.while_loop(
                lambda j, sum_: j < i, lambda j, sum_: (j + 1, sum_ + x * total), (0, total)
            )
            return i + 1, torch.sin(inner[1])

        return ps.while_loop(lambda i, total: i < n, row, (0, x))[1]

    return Small(triangle, (torch.ones(3), 3))


def switch_of_three() -> Small:
    """Branches that compute, that pass a value on, and that return a constant."""

    @ps.function
    def choose(x, k):
        return ps.switch(k, [lambda: x * 2, lambda: x, lambda: torch.zeros(2)])

    return Small(choose, (torch.ones(2), 1))


def map_with_array() -> Small:
    """A for-each over a sequence, and an array that is written in a counted loop."""

    @ps.function
    def reverse_squares(xs):
        squares = ps.map_fn(lambda x: x * x, xs)
        n = xs.shape[0]
        array = ps.while_loop(
            lambda i, array: i < n,
            lambda i, array: (i + 1, array.write(n - 1 - i, squares[i])),
            (0, ps.TensorArray(n)),
        )[1]
        return array.stack()

    return Small(reverse_squares, (torch.ones(4),))


def random_walk() -> Small:
    """A loop that draws random numbers."""

    @ps.function
    def walk(x, n):
        return ps.while_loop(
            lambda i, y: i < n, lambda i, y: (i + 1, torch.dropout(y, 0.5, True)), (0, x)
        )[1]

    return Small(walk, (torch.ones(3), 2))


SMALL: dict[str, Callable[[], Small]] = {
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
