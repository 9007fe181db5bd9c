"""Which records wait for which: the recorded steps of one flush as a graph.

Aliases are resolved beforehand and are no part of it. Records are numbered anew, by group: those
that may share a launch are consecutive, in recording order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.plan.schedule import Integers
from penstock.plan.slots import ranges
from penstock.plan.value_table import ValueTable


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The records of a flush that are no aliases, in recording order."""

    #: The record of each step.
    records: Integers
    kinds: Integers
    #: How many values each takes, and which, one step after the other.
    arity: Integers
    operands: Integers
    #: The first value that each makes, and how many slots it fills.
    results: Integers
    cells: Integers


@dataclass(frozen=True, slots=True, eq=False)
class RecordGraph:
    """The steps of a flush by group."""

    #: The step of each node.
    order: Integers
    group: Integers
    #: Where the nodes of each group begin, and the end of all.
    starts: list[int]
    #: The step kind of each group.
    kinds: list[int]
    #: The values that the nodes take, one node after the other, and where each group's begin.
    values: Integers
    value_starts: list[int]
    #: Where the slots that each group fills begin, one node after the other.
    cell_starts: list[int]
    #: For how many values each node waits.
    pending: Integers
    #: The nodes that wait for each node: those of node n are readers[first[n] : first[n + 1]], and
    #: so many.
    first: Integers
    counts: Integers
    readers: Integers

    def rows(self, array: Integers, starts: list[int], group: int) -> Integers:
        """What an array has for the nodes of a group, which begins at `starts`: one row each."""
        count = self.starts[group + 1] - self.starts[group]
        first, end = starts[group], starts[group + 1]
        return array[first:end].reshape(count, (end - first) // count)

    def places(self, group: int, nodes: Integers) -> slice | Integers:
        """Where nodes, which ascend, are among the rows of their group."""
        start, low, count = self.starts[group], int(nodes[0]), len(nodes)
        if int(nodes[-1]) - low + 1 == count:
            return slice(low - start, low - start + count)
        return nodes - start

    def dependents(self, nodes: Integers) -> Integers:
        """The nodes that wait for nodes, once for each value; the nodes ascend."""
        low, high = int(nodes[0]), int(nodes[-1]) + 1
        if high - low == len(nodes):
            return self.readers[self.first[low] : self.first[high]]
        counts = self.counts[nodes]
        ends = counts.cumsum()
        index = (self.first[nodes] - ends + counts).repeat(counts)
        index += np.arange(len(index))
        found: Integers = self.readers[index]
        return found


def build_graph(steps: Steps, values: ValueTable, depths: Integers | None = None) -> RecordGraph:
    """The graph of steps; with depths, only steps of one depth share a group."""
    group, members = _groups(steps.kinds, depths)
    order = stable_order(group)
    group = group[order]
    count = len(members)
    starts = np.searchsorted(group, np.arange(count + 1))
    arity = steps.arity[order]
    base = np.cumsum(steps.arity) - steps.arity
    taken = steps.operands[ranges(base[order], arity)]
    counts, readers, pending = _edges(steps, values, order, arity, taken)
    return RecordGraph(
        order=order,
        group=group,
        starts=starts.tolist(),
        kinds=members.tolist(),
        values=taken,
        value_starts=_ends(arity)[starts].tolist(),
        cell_starts=_ends(steps.cells[order])[starts].tolist(),
        pending=pending,
        first=_ends(counts),
        counts=counts,
        readers=readers,
    )


def _ends(counts: Integers) -> Integers:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _groups(kinds: Integers, depths: Integers | None) -> tuple[Integers, Integers]:
    """The group of each step, ordered by depth and kind, and the kind of each group."""
    kind_numbers = np.flatnonzero(np.bincount(kinds))
    width = int(kind_numbers[-1]) + 1
    keys = kinds if depths is None else kinds + depths * width
    found = kind_numbers if depths is None else np.flatnonzero(np.bincount(keys))
    table = np.zeros(int(found[-1]) + 1, np.int64)
    table[found] = np.arange(len(found))
    return table[keys], found % width


def _edges(
    steps: Steps, values: ValueTable, order: Integers, arity: Integers, taken: Integers
) -> tuple[Integers, Integers, Integers]:
    """How many readers each node has, which, and for how many values each node waits."""
    count = len(order)
    node = np.empty(int(steps.records[-1]) + 1, np.int64)
    node[steps.records[order]] = np.arange(count)
    maker = values.maker[values.root[taken]]
    reader = np.repeat(np.arange(count), arity)
    is_new = maker >= 0
    if not is_new.all():
        maker, reader = maker[is_new], reader[is_new]
    maker = node[maker]
    # a stable sort, as makers come in long ascending runs
    readers = reader[np.argsort(maker, kind="stable")]
    pending = np.bincount(reader, minlength=count)
    return np.bincount(maker, minlength=count), readers, pending


def stable_order(numbers: Integers) -> Integers:
    """What sorts numbers, equal ones in their order; fast for small numbers."""
    if len(numbers) and numbers.max() < 1 << 16:
        return np.argsort(numbers.astype(np.uint16), kind="stable")
    return np.argsort(numbers, kind="stable")


def first_of_each(ascending: Integers) -> Integers:
    """Ascending numbers without repetitions."""
    if len(ascending) < 2:
        return ascending
    keep = np.empty(len(ascending), np.bool_)
    keep[0] = True
    np.not_equal(ascending[1:], ascending[:-1], out=keep[1:])
    return ascending[keep]


def settle(graph: RecordGraph, pending: Integers, nodes: Integers) -> Integers:
    """Count down what waits for nodes; those that wait for nothing more, ascending."""
    waiting = graph.dependents(nodes)
    if not len(waiting):
        return waiting
    np.subtract.at(pending, waiting, 1)
    ready = waiting[pending[waiting] == 0]
    ready.sort(kind="stable")  # several ascending runs
    return first_of_each(ready)


def find_depths(graph: RecordGraph) -> Integers:
    """For each node how many others are before it on the longest way to it."""
    depths = np.zeros(len(graph.order), np.int64)
    pending = graph.pending.copy()
    front = np.flatnonzero(pending == 0)
    depth = 0
    while len(front):
        depths[front] = depth
        depth += 1
        front = settle(graph, pending, front)
    return depths
