"""The binary Tree-LSTM as arrays: what the peers at `trees` are given, and how they order nodes.

The parameters are those of `baselines.tree_lstm`. Nodes of all trees are numbered through.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines.heights import Integers, by_height, rows_of


class Forest(NamedTuple):
    """The nodes of all trees; children are -1 for leaves."""

    token: Integers
    left: Integers
    right: Integers
    roots: Integers


class Levels(NamedTuple):
    """Rows of states, leaves first and then by height."""

    tokens: Integers
    #: Rows of the children of all inner nodes, by height.
    left: Integers
    right: Integers
    #: Where each height from 1 begins among inner nodes, and where the last one ends.
    bounds: Integers
    roots: Integers


def forest_of(problem: dict[str, Any]) -> Forest:
    """The trees of a problem."""
    return Forest(*(problem[name] for name in Forest._fields))


def levels_of(forest: Forest) -> Levels:
    """What runs together: part of every timed call, as a fresh batch has a fresh structure."""
    heights = by_height(np.stack([forest.left, forest.right], 1))
    order, row = rows_of(heights)
    inner = order[len(heights[0]) :]
    bounds = np.cumsum([0, *(len(nodes) for nodes in heights[1:])])
    return Levels(
        forest.token[heights[0]],
        row[forest.left[inner]],
        row[forest.right[inner]],
        bounds,
        row[forest.roots],
    )
