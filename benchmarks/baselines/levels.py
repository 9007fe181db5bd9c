"""Which nodes of many trees can be computed together, by height: what hand-batching needs to know.

Everything is made in numpy from the arrays of the trees. A node's height is 0 for a leaf and one
more than its higher child's otherwise, so the nodes of one height never wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.heights import Integers, by_height, rows_of
from penstock.data import Tree


@dataclass(frozen=True)
class Levels:
    """For baseline b. A row is a node's place among all states, leaves first, then by height."""

    #: The leaves' tokens.
    tokens: Tensor
    #: For each height from 1: the rows of the left and of the right children.
    children: list[tuple[Tensor, Tensor]]
    #: The row of each tree's root.
    roots: Tensor


@dataclass(frozen=True)
class Step:
    """One height of baseline b+. Rows count in the pool as it is before this step."""

    left: Tensor
    right: Tensor
    #: Rows of the old pool that are still to be read afterwards.
    keep: Tensor
    #: How many of the new states go to the pool; the rest are roots.
    pool: int


@dataclass(frozen=True)
class NeededLevels:
    """For baseline b+."""

    tokens: Tensor
    #: How many leaves go to the pool; the rest are roots themselves.
    leaf_pool: int
    steps: list[Step]
    #: Where each tree's root is among the finished ones.
    roots: Tensor


@dataclass(frozen=True)
class _Forest:
    """The nodes of all trees, numbered through."""

    token: Integers
    #: -1 for leaves.
    left: Integers
    right: Integers
    root: Integers
    #: The nodes of each height.
    heights: list[Integers]


def levels_of(trees: Sequence[Tree]) -> Levels:
    """The level structure for `by_level`."""
    forest = _join(trees)
    _, row = rows_of(forest.heights)
    children = [
        (torch.from_numpy(row[forest.left[nodes]]), torch.from_numpy(row[forest.right[nodes]]))
        for nodes in forest.heights[1:]
    ]
    tokens = torch.from_numpy(forest.token[forest.heights[0]])
    return Levels(tokens, children, torch.from_numpy(row[forest.root]))


def needed_levels_of(trees: Sequence[Tree]) -> NeededLevels:
    """The level structure for `by_level_needed`."""
    forest = _join(trees)
    is_root = np.zeros(len(forest.token), dtype=bool)
    is_root[forest.root] = True
    heights = [nodes[np.argsort(is_root[nodes], kind="stable")] for nodes in forest.heights]
    pools = [nodes[~is_root[nodes]] for nodes in heights]
    row = np.empty(len(forest.token), dtype=np.int64)
    steps, pool = [], pools[0]
    for nodes, new in zip(heights[1:], pools[1:]):
        row[pool] = np.arange(len(pool))
        left, right = row[forest.left[nodes]], row[forest.right[nodes]]
        keep = np.delete(np.arange(len(pool)), np.concatenate([left, right]))
        steps.append(_step(left, right, keep, len(new)))
        pool = np.concatenate([pool[keep], new])
    finished = np.concatenate([nodes[is_root[nodes]] for nodes in heights])
    row[finished] = np.arange(len(finished))
    tokens = torch.from_numpy(forest.token[heights[0]])
    return NeededLevels(tokens, len(pools[0]), steps, torch.from_numpy(row[forest.root]))


def forest_arrays(trees: Sequence[Tree]) -> dict[str, Integers]:
    """The nodes of all trees as arrays, for programs that make their own structure."""
    forest = _join(trees)
    return {
        "token": forest.token,
        "left": forest.left,
        "right": forest.right,
        "roots": forest.root,
    }


def _step(left: Integers, right: Integers, keep: Integers, pool: int) -> Step:
    return Step(torch.from_numpy(left), torch.from_numpy(right), torch.from_numpy(keep), pool)


def _join(trees: Sequence[Tree]) -> _Forest:
    sizes = np.array([len(tree) for tree in trees])
    offsets = np.cumsum(sizes) - sizes
    arity = np.concatenate([np.diff(tree.start.numpy()) for tree in trees])
    assert set(np.unique(arity)) <= {0, 2}, "the baselines are for binary trees"
    pairs = np.concatenate([tree.children.numpy() + at for tree, at in zip(trees, offsets)])
    children = np.full((len(arity), 2), -1, dtype=np.int64)
    children[arity == 2] = pairs.reshape(-1, 2)
    return _Forest(
        token=np.concatenate([tree.token.numpy() for tree in trees]),
        left=children[:, 0],
        right=children[:, 1],
        root=np.array([int(tree.root) for tree in trees]) + offsets,
        heights=by_height(children),
    )
