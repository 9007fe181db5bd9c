"""Slices whose bounds are computed: children of a node, prefixes, windows, parts of parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program

#: Two trees: the children of node i are numbers start[i] to start[i + 1] - 1 of the other list.
FORESTS = (
    ([0, 2, 2, 5, 5, 5, 5], [1, 2, 3, 4, 5]),
    ([0, 1, 4, 4, 5, 7, 7, 7, 7], [1, 2, 3, 4, 5, 6, 7]),
)


def nodes(make: Maker) -> list[tuple[Any, ...]]:
    """Instances that are one node of a tree each: inner nodes, leaves, the root."""
    made = []
    for (start, children), places in zip(FORESTS, ((0, 2, 1, 5), (0, 1, 3, 4, 7)), strict=True):
        x = make.normal(len(start) - 1, 2)
        made += [(torch.tensor(start), torch.tensor(children), x, i) for i in places]
    return made


@table_program(torch.float64)
def fold_over_children(make: Maker) -> Case:
    """A recursive call for each child, which are a slice; the slice of a leaf is empty."""
    weight = make.weight("weight", 2, 2)

    def plain(start: Tensor, children: Tensor, x: Tensor, i: Any) -> Tensor:
        total = x[i]
        for child in children[start[i] : start[i + 1]]:
            total = total + torch.tanh(plain(start, children, x, child) @ weight)
        return total

    @ps.function
    def traced(start: Tensor, children: Tensor, x: Tensor, i: Any) -> Tensor:
        def add(total: Tensor, child: Tensor) -> Tensor:
            return total + torch.tanh(traced(start, children, x, child) @ weight)

        return ps.foldl(add, children[start[i] : start[i + 1]], x[i])

    return Case(plain, traced, nodes(make))


@table_program(torch.float64)
def map_over_children(make: Maker) -> Case:
    """Children in parallel, by `map_fn` over a slice in one branch; leaves in the other."""
    weight = make.weight("weight", 2, 2)

    def plain(start: Tensor, children: Tensor, x: Tensor, i: Any) -> Tensor:
        if start[i] == start[i + 1]:
            return x[i]
        total = x[i]
        for child in children[start[i] : start[i + 1]]:
            total = total + torch.tanh(plain(start, children, x, child) @ weight)
        return total

    @ps.function
    def traced(start: Tensor, children: Tensor, x: Tensor, i: Any) -> Tensor:
        def inner() -> Tensor:
            below = ps.map_fn(
                lambda child: traced(start, children, x, child), children[start[i] : start[i + 1]]
            )
            return x[i] + torch.tanh(below @ weight).sum(0)

        return ps.cond(start[i] == start[i + 1], lambda: x[i], inner)

    return Case(plain, traced, nodes(make))


@table_program(torch.float64)
def slices_of_slices(make: Maker) -> Case:
    """Grandchildren: a slice for each element of a slice, and the rows that it picks."""
    weight = make.weight("weight", 2)

    def plain(start: Tensor, children: Tensor, x: Tensor, i: Any) -> Tensor:
        total = x[i] * weight
        for child in children[start[i] : start[i + 1]]:
            total = total + (x[children[start[child] : start[child + 1]]] * weight).exp().sum(0)
        return total

    @ps.function
    def traced(start: Tensor, children: Tensor, x: Tensor, i: Any) -> Tensor:
        def below(total: Tensor, i: Any) -> Tensor:
            return total + (x[children[start[i] : start[i + 1]]] * weight).exp().sum(0)

        return ps.foldl(below, children[start[i] : start[i + 1]], x[i] * weight)

    return Case(plain, traced, nodes(make))


@table_program(torch.float64)
def prefixes_in_a_loop(make: Maker) -> Case:
    """Slices as long as a carried number says: prefixes, suffixes and windows, some of them cut off
    by the end.
    """
    weight = make.weight("weight", 3)

    def step(x: Tensor, t: Any, total: Tensor) -> Tensor:
        before = (x[:t] * weight).tanh().sum(0)
        after = torch.softmax(x[t:], 0).sum(0)
        return total * 0.5 + before + after + (x[t : t + 2] * x[t : t + 2]).sum(0)

    def plain(x: Tensor, n: Any) -> Tensor:
        total = weight * 1.0
        for t in range(n):
            total = step(x, t, total)
        return total

    @ps.function
    def traced(x: Tensor, n: Any) -> Tensor:
        return ps.while_loop(
            lambda t, total: t < n, lambda t, total: (t + 1, step(x, t, total)), (0, weight * 1.0)
        )[1]

    sizes = ((3, 2), (5, 5), (1, 3), (0, 2), (4, 0), (5, 1))
    return Case(plain, traced, [(make.normal(length, 3), n) for length, n in sizes])


@table_program(torch.float64)
def cut_off_slices(make: Maker) -> Case:
    """The same bounds on sequences of two lengths: one is cut off where the other is not."""
    weight = make.weight("weight", 2)

    def plain(x: Tensor, y: Tensor, n: Any) -> tuple[Tensor, Tensor, Tensor]:
        ends = torch.cat([(x[:n] * weight).sin(), (y[:n] * weight).cos()])
        part = y[1:n][n // 2 :]
        rolled = torch.cat([x[n:], x[:n]]) * x
        return ends, part.exp().sum(0), rolled.sum(0)

    sizes = ((3, 5, 4), (5, 3, 2), (1, 4, 3), (0, 2, 1), (3, 4, -1), (4, 1, 6))
    instances = [(make.normal(a, 2), make.normal(b, 2), n) for a, b, n in sizes]
    return Case(plain, ps.function(plain), instances)


@table_program(torch.float64)
def slices_by_data(make: Maker) -> Case:
    """A bound that is computed from contents, and a part that is set."""

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        n = x[:, 0].argmax() + 1
        changed = x.clone()
        changed[:n] = x[:n] * 2
        return x[:n].exp().sum(0), changed

    return Case(plain, ps.function(plain), [(make.normal(n, 2),) for n in (3, 1, 5, 2, 5, 4)])
