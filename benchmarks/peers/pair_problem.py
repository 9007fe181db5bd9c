"""Relatedness of sentence pairs as arrays: what the peers at `pairs` are given, in which order.

The parameters are those of `baselines.child_sum.Relatedness`. Words of all trees are numbered
through; the left trees of all pairs come first, then the right ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines.heights import Integers, rising, rows_of


class Forest(NamedTuple):
    """The words of all trees; the parent of a root is -1."""

    token: Integers
    parent: Integers
    roots: Integers


class Levels(NamedTuple):
    """Rows of words, leaves first and then by height."""

    tokens: Integers
    #: Where each height begins among all rows, and where the last one ends.
    bounds: Integers
    #: Rows of all children, in the order of their parents.
    children: Integers
    #: The row of the parent of each of them.
    parents: Integers
    #: Where the children of each height from 1 begin among `children`, and where the last end.
    child_bounds: Integers
    roots: Integers


def forest_of(problem: dict[str, Any]) -> Forest:
    """The trees of a problem."""
    return Forest(*(problem[name] for name in Forest._fields))


def levels_of(forest: Forest) -> Levels:
    """What runs together: part of every timed call, as a fresh batch has a fresh structure."""
    child = np.flatnonzero(forest.parent >= 0)
    arity = np.bincount(forest.parent[child], minlength=len(forest.parent))
    heights = list(rising(forest.parent, arity))
    order, row = rows_of(heights)
    bounds = np.cumsum([0, *map(len, heights)])
    parents = row[forest.parent[child]]
    by_parent = np.argsort(parents, kind="stable")
    parents = parents[by_parent]
    return Levels(
        forest.token[order],
        bounds,
        row[child[by_parent]],
        parents,
        np.searchsorted(parents, bounds[1:]),
        row[forest.roots],
    )


def entropy_of(targets: Any) -> float:
    """What the divergence from a distribution has of the targets alone, summed over all pairs."""
    return float(np.sum(targets * np.log(np.where(targets > 0, targets, 1))))
