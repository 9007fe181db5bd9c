"""Nodes of trees by height, in numpy alone: peers without torch use it too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def rising(parent: Integers, arity: Integers) -> Iterator[Integers]:
    """The nodes of each height from 0: a node is ready when its last child is.

    `parent` is -1 for roots.
    """
    waiting = arity.copy()
    ready = np.flatnonzero(waiting == 0)
    while len(ready):
        yield ready
        above = parent[ready][parent[ready] >= 0]
        np.subtract.at(waiting, above, 1)
        ready = np.unique(above[waiting[above] == 0])


def rows_of(heights: Sequence[Integers]) -> tuple[Integers, Integers]:
    """The nodes in the order of their heights, and the place of each node in that order."""
    order = np.concatenate(heights)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    return order, row


def by_height(children: Integers) -> list[Integers]:
    """Nodes of binary trees, from the two children of each; they are -1 for leaves."""
    is_inner = children[:, 0] >= 0
    inner = np.flatnonzero(is_inner)
    parent = np.full(len(children), -1, dtype=np.int64)
    parent[children[inner].ravel()] = np.repeat(inner, 2)
    return list(rising(parent, np.where(is_inner, 2, 0)))
