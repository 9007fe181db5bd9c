"""The order of step kinds: ranks, and turns among kinds that feed each other.

A kind of a lower rank never waits for one of a higher rank. Kinds that feed each other (recursion,
loops) share a rank. Their turns follow one iteration: the circle is cut where records enter it from
outside, then the circles that are left inside, and so on.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.components import find_components
from penstock.plan.record_graph import RecordGraph
from penstock.plan.schedule import Integers

#: How often circles inside circles are cut; what is left then goes by the order of recording.
MOST_CUTS = 8

Successors = dict[int, list[int]]


def order_groups(graph: RecordGraph) -> tuple[list[int], list[int]]:
    """The rank and the turn of each group."""
    makers = np.repeat(graph.group, graph.counts)
    takers = graph.group[graph.readers]
    successors = _successors(len(graph.kinds), makers, takers)
    circles = find_components(successors, successors)
    return _ranks(circles, successors), _turns(graph, makers, takers, circles, successors)


def _successors(count: int, makers: Integers, takers: Integers) -> Successors:
    feeds = np.zeros(count * count, np.bool_)
    feeds[makers * count + takers] = True
    successors: Successors = {group: [] for group in range(count)}
    for pair in np.flatnonzero(feeds).tolist():
        successors[pair // count].append(pair % count)
    return successors


def _ranks(circles: list[list[int]], successors: Successors) -> list[int]:
    """The level of each group, circles taken as one."""
    ranks = [0] * len(successors)
    for circle in circles:
        rank = max(ranks[group] for group in circle)
        for other in {other for group in circle for other in successors[group]}:
            ranks[other] = max(ranks[other], rank + 1)
        for group in circle:
            ranks[group] = rank
    return ranks


def _turns(
    graph: RecordGraph,
    makers: Integers,
    takers: Integers,
    circles: list[list[int]],
    successors: Successors,
) -> list[int]:
    for _ in range(MOST_CUTS):
        if all(len(circle) == 1 for circle in circles):
            break
        successors = _cut(graph, makers, takers, circles, successors)
        circles = [part for circle in circles for part in find_components(circle, successors)]
    first = graph.order[np.array(graph.starts[:-1])].tolist()
    order = [group for circle in circles for group in sorted(circle, key=first.__getitem__)]
    turns = [0] * len(order)
    for turn, group in enumerate(order):
        turns[group] = turn
    return turns


def _cut(
    graph: RecordGraph,
    makers: Integers,
    takers: Integers,
    circles: list[list[int]],
    successors: Successors,
) -> Successors:
    """Open each circle: nothing in it leads any more to a kind with which records enter it."""
    circle_of = np.empty(len(successors), np.int64)
    for number, circle in enumerate(circles):
        circle_of[circle] = number
    inside = circle_of[makers] == circle_of[takers]
    waits = np.bincount(graph.readers[inside], minlength=len(graph.group))
    enters = np.zeros(len(successors), np.bool_)
    enters[graph.group[waits == 0]] = True
    circle = circle_of.tolist()
    return {
        group: [other for other in following if circle[other] != circle[group] or not enters[other]]
        for group, following in successors.items()
    }
