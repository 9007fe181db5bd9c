"""Which group of ready records runs next.

A policy sees how many records of each group are ready and names one group; all its ready records
run in one launch. What it chooses may depend on the graph of records only, never on time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from penstock.plan.kind_order import order_groups
from penstock.plan.record_graph import RecordGraph, find_depths

#: How many records of each group are ready; groups without any are left out.
Widths = Mapping[int, int]


class Policy(Protocol):
    """Chooses the next launch of one flush."""

    def choose(self, widths: Widths) -> int:
        """The group that runs next."""


class RankPolicy:
    """The lowest kind in the graph of step kinds: a kind waits while a lower one can still feed it.

    Kinds that feed each other take turns, round after round: one round is one iteration for all
    records that have got so far. The widest first would part them: one arity of a tree's nodes
    would run ahead through what all arities share.
    """

    def __init__(self, graph: RecordGraph) -> None:
        self.ranks, self.turns = order_groups(graph)
        #: The rank and the turn that were chosen last; ranks never fall again.
        self.last = (-1, -1)

    def choose(self, widths: Widths) -> int:
        """The group that runs next."""
        ranks, turns = self.ranks, self.turns
        rank = min(ranks[group] for group in widths)
        last = self.last[1] if self.last[0] == rank else -1
        ready = (group for group in widths if ranks[group] == rank)
        chosen = min(ready, key=lambda group: (turns[group] <= last, turns[group]))
        self.last = rank, turns[chosen]
        return chosen


class DepthPolicy:
    """Records of one depth after those of the depth before; groups are ordered like that."""

    def __init__(self, graph: RecordGraph) -> None:
        pass

    def choose(self, widths: Widths) -> int:
        """The group that runs next."""
        return min(widths)


class AgendaPolicy:
    """The kind whose records have the smallest mean depth (Neubig, Goldberg and Dyer 2017).

    The mean is over all records of the flush, as there: over those that remain it would rise for a
    loop as it runs, and what follows the loop would start before it has ended.
    """

    def __init__(self, graph: RecordGraph) -> None:
        totals = np.bincount(graph.group, weights=find_depths(graph))
        self.means = (totals / np.bincount(graph.group)).tolist()

    def choose(self, widths: Widths) -> int:
        """The group that runs next."""
        means = self.means
        return min(widths, key=lambda group: (means[group], -widths[group], group))


POLICIES: dict[str, type[RankPolicy] | type[DepthPolicy] | type[AgendaPolicy]] = {
    "rank": RankPolicy,
    "depth": DepthPolicy,
    "agenda": AgendaPolicy,
}
