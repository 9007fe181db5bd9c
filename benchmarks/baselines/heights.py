"""Nodes of binary trees by height, in numpy alone: peers without torch use it too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def by_height(children: Integers) -> list[Integers]:
    """Nodes grouped by height, rising: a node is ready when its last child is."""
    inner = np.flatnonzero(children[:, 0] >= 0)
    parent = np.full(len(children), -1, dtype=np.int64)
    parent[children[inner].ravel()] = np.repeat(inner, 2)
    waiting = np.where(children[:, 0] >= 0, 2, 0)
    heights, ready = [], np.flatnonzero(waiting == 0)
    while len(ready):
        heights.append(ready)
        above = parent[ready][parent[ready] >= 0]
        np.subtract.at(waiting, above, 1)
        ready = np.unique(above[waiting[above] == 0])
    return heights
