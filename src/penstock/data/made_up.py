"""Made-up trees of given shapes, for tests, demos and benchmarks.

All trees of a call are grown together: a shape is a row of parents in preorder, and one level of
all trees is split at a time. The same arguments and seed always give the same trees. They are
trees by construction and are not checked again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from penstock.data.checks import Integers
from penstock.data.nodes import child_lists
from penstock.data.tree import Tree
from penstock.errors import ArgumentError, report

#: Sizes of subtrees, int64[k], to sizes of their children's subtrees, int64[k, arity].
Split = Callable[[Integers], Integers]


def random_binary_trees(
    count: int,
    *,
    leaves: tuple[int, int] = (10, 60),
    mean: float = 25,
    spread: float = 10,
    vocabulary: int = 2000,
    seed: int,
) -> list[Tree]:
    """Binary trees with a normal number of leaves, clipped to `leaves`, each split uniformly.

    >>> [len(tree) for tree in random_binary_trees(3, leaves=(4, 4), seed=0)]
    [7, 7, 7]
    """
    _check(count, vocabulary, leaves=leaves)
    rng = np.random.default_rng(seed)
    widths = np.clip(rng.normal(mean, spread, count), *leaves).astype(np.int64)
    sizes = 2 * widths - 1
    parents = _grow(sizes, lambda spans: _split_binary(spans, rng))
    return _plant(parents, sizes, rng, vocabulary)


def random_trees(
    count: int,
    *,
    max_arity: int,
    nodes: tuple[int, int] = (10, 60),
    vocabulary: int = 2000,
    seed: int,
) -> list[Tree]:
    """Trees with a uniform number of nodes, each inner node with 1 to `max_arity` children.

    >>> trees = random_trees(100, max_arity=5, seed=0)
    >>> max(int(tree.start.diff().max()) for tree in trees)
    5
    """
    _check(count, vocabulary, nodes=nodes, max_arity=(1, max_arity))
    rng = np.random.default_rng(seed)
    sizes = rng.integers(nodes[0], nodes[1] + 1, count)
    parents = _grow(sizes, lambda spans: _split_any(spans, max_arity, rng))
    return _plant(parents, sizes, rng, vocabulary)


def perfect_trees(
    count: int, depth: int, *, arity: int = 2, vocabulary: int = 2000, seed: int = 0
) -> list[Tree]:
    """Trees whose leaves all lie `depth` edges below the root; only their tokens differ.

    >>> len(perfect_trees(1, depth=3)[0])
    15
    """
    _check(count, vocabulary, arity=(1, arity))
    size = sum(arity**level for level in range(depth + 1))
    sizes = np.full(count, size, dtype=np.int64)
    parents = _grow(sizes, lambda spans: np.repeat(((spans - 1) // arity)[:, None], arity, axis=1))
    return _plant(parents, sizes, np.random.default_rng(seed), vocabulary)


def chains(
    count: int, *, length: tuple[int, int] = (10, 60), vocabulary: int = 2000, seed: int
) -> list[Tree]:
    """Trees in which every node but the last has one child: sequences written as trees."""
    _check(count, vocabulary, length=length)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(length[0], length[1] + 1, count)
    parents = _grow(sizes, lambda spans: spans[:, None] - 1)
    return _plant(parents, sizes, rng, vocabulary)


def combs(
    count: int, *, leaves: tuple[int, int] = (10, 60), vocabulary: int = 2000, seed: int
) -> list[Tree]:
    """Binary trees whose left children are all leaves: the deepest for their size."""
    _check(count, vocabulary, leaves=leaves)
    rng = np.random.default_rng(seed)
    sizes = 2 * rng.integers(leaves[0], leaves[1] + 1, count) - 1
    parents = _grow(sizes, lambda spans: np.stack([np.ones_like(spans), spans - 2], axis=1))
    return _plant(parents, sizes, rng, vocabulary)


def _check(count: int, vocabulary: int, **ranges: tuple[int, int]) -> None:
    """Refuse numbers of which no trees can be made."""
    facts = [("count", str(count))] if count < 0 else []
    facts += [("vocabulary", str(vocabulary))] if vocabulary < 1 else []
    for name, given in ranges.items():
        is_range = isinstance(given, tuple) and len(given) == 2 and 1 <= given[0] <= given[1]
        facts += [] if is_range else [(name, str(given))]
    if facts:
        raise ArgumentError(
            report(
                "Trees cannot be made of these numbers.",
                facts=facts,
                todo="Pass a count of 0 or more, one word at least, and ranges (lowest, highest)"
                " from 1 on.",
            )
        )


def _grow(sizes: Integers, split: Split) -> Integers:
    """Parents of all trees, numbered through, in preorder.

    `split` says, for subtrees of more than one node, how many nodes each child's subtree gets; 0 is
    no child. In preorder a subtree is consecutive, so sizes alone fix every number.
    """
    parents = np.full(int(sizes.sum()), -1, dtype=np.int64)
    position, span = _offsets(sizes)[:-1], sizes
    while len(position := position[span > 1]):
        span = span[span > 1]
        below = split(span)
        first = position[:, None] + 1 + np.cumsum(below, axis=1) - below
        parents[first[below > 0]] = np.repeat(position, np.count_nonzero(below, axis=1))
        position, span = first[below > 0], below[below > 0]
    return parents


def _split_binary(spans: Integers, rng: np.random.Generator) -> Integers:
    leaves = (spans + 1) // 2
    left = rng.integers(1, leaves)
    return np.stack([2 * left - 1, 2 * (leaves - left) - 1], axis=1)


def _split_any(spans: Integers, max_arity: int, rng: np.random.Generator) -> Integers:
    """A uniform number of children; what each has beyond one node is cut at uniform places."""
    arity = rng.integers(1, np.minimum(max_arity, spans - 1) + 1)
    spare = spans - 1 - arity
    cuts = rng.integers(0, spare[:, None] + 1, (len(spans), max_arity - 1))
    is_child = np.arange(max_arity) < arity[:, None]
    cuts = np.sort(np.where(is_child[:, 1:], cuts, spare[:, None]), axis=1)
    edges = np.concatenate([np.zeros_like(spare)[:, None], cuts, spare[:, None]], axis=1)
    return np.diff(edges, axis=1) + is_child


def _plant(
    parents: Integers, sizes: Integers, rng: np.random.Generator, vocabulary: int
) -> list[Tree]:
    """Cut numbered-through parents into trees of their own, with random tokens."""
    tokens = rng.integers(0, vocabulary, len(parents))
    start, children = child_lists(parents)
    offsets = _offsets(sizes)
    node_offset = np.repeat(offsets[:-1], sizes)
    children = children - node_offset[children]
    trees = []
    for number, (low, high) in enumerate(pairwise(offsets.tolist())):
        first_child = low - number
        trees.append(
            Tree(
                token=torch.from_numpy(tokens[low:high]),
                start=torch.from_numpy(start[low : high + 1] - first_child),
                children=torch.from_numpy(children[first_child : high - number - 1]),
                root=torch.tensor(0),
            )
        )
    return trees


def _offsets(sizes: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(sizes)])
