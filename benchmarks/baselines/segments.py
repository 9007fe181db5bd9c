"""Which words of many trees can be computed together, by height, for trees of any arity.

As `levels`, for child-sum: the children of a height lie in one list, and each says which node of
the height it belongs to. All is made in numpy from the arrays of the trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.heights import Integers, rising
from penstock.data import Tree


@dataclass(frozen=True)
class SegmentStep:
    """One height from 1. Rows count in the pool as it is before this step."""

    #: Rows of all children, in any order.
    children: Tensor
    #: For each of them: which node of this height it is a child of.
    parents: Tensor
    #: Rows of the old pool that are still to be read afterwards.
    keep: Tensor
    #: How many of the new states go to the pool; the rest are roots.
    pool: int


@dataclass(frozen=True)
class Segments:
    """Everything that hand-batching needs to know."""

    #: The words of all trees, by height.
    tokens: Tensor
    #: How many words each height has.
    sizes: list[int]
    #: How many leaves go to the pool; the rest are roots themselves.
    leaf_pool: int
    steps: list[SegmentStep]
    #: Where each tree's root is among the finished ones.
    roots: Tensor

    @property
    def leaves(self) -> int:
        """How many words have no children; they come first."""
        return self.sizes[0]


@dataclass(frozen=True)
class _Forest:
    """The nodes of all trees, numbered through."""

    token: Integers
    #: -1 for roots.
    parent: Integers
    root: Integers
    #: How many children each has.
    arity: Integers


def segments_of(trees: Sequence[Tree]) -> Segments:
    """The structure for `child_sum.by_level`; a left tree of each pair, then the right ones."""
    forest = _join(trees)
    height, is_root = _heights(forest), forest.parent < 0
    order = np.lexsort((is_root, height))
    sizes = np.bincount(height)
    levels = np.split(order, np.cumsum(sizes)[:-1])
    place = np.empty(len(order), dtype=np.int64)
    steps, pool = [], levels[0][~is_root[levels[0]]]
    leaf_pool = len(pool)
    for number, nodes in enumerate(levels[1:], start=1):
        above = forest.parent[pool]
        is_child = height[above] == number
        place[nodes] = np.arange(len(nodes))
        new = nodes[~is_root[nodes]]
        steps.append(_step(is_child, place[above[is_child]], len(new)))
        pool = np.concatenate([pool[~is_child], new])
    finished = order[is_root[order]]
    place[finished] = np.arange(len(finished))
    tokens, roots = torch.from_numpy(forest.token[order]), torch.from_numpy(place[forest.root])
    return Segments(tokens, sizes.tolist(), leaf_pool, steps, roots)


def forest_arrays(trees: Sequence[Tree]) -> dict[str, Integers]:
    """The words of all trees as arrays, for programs that make their own structure."""
    forest = _join(trees)
    return {"token": forest.token, "parent": forest.parent, "roots": forest.root}


def _step(
    is_child: np.ndarray[tuple[int], np.dtype[np.bool]], parents: Integers, pool: int
) -> SegmentStep:
    children, keep = np.flatnonzero(is_child), np.flatnonzero(~is_child)
    return SegmentStep(
        torch.from_numpy(children), torch.from_numpy(parents), torch.from_numpy(keep), pool
    )


def _join(trees: Sequence[Tree]) -> _Forest:
    sizes = np.array([len(tree) for tree in trees])
    offsets = np.cumsum(sizes) - sizes
    arity = np.concatenate([np.diff(tree.start.numpy()) for tree in trees])
    children = np.concatenate([tree.children.numpy() + at for tree, at in zip(trees, offsets)])
    parent = np.full(len(arity), -1, dtype=np.int64)
    parent[children] = np.repeat(np.arange(len(arity)), arity)
    return _Forest(
        token=np.concatenate([tree.token.numpy() for tree in trees]),
        parent=parent,
        root=np.array([int(tree.root) for tree in trees]) + offsets,
        arity=arity,
    )


def _heights(forest: _Forest) -> Integers:
    """0 for leaves."""
    height = np.zeros_like(forest.parent)
    for number, nodes in enumerate(rising(forest.parent, forest.arity)):
        height[nodes] = number
    return height
