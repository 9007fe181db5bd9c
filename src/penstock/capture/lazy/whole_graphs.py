"""Joins all that one instance has recorded into one step, where another instance did the same.

Records of one instance that follow each other are a graph; a step that is a Python function taken
as it is stands between two graphs. Graphs of equal shape become records of one new step kind, which
run together in one launch; all others stay as they are. Values that a joined graph leaves have new
numbers. Nothing here looks at single records in Python: time goes with the number of graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.capture.lazy.composite_blocks import GraphShape, step_kind_of
from penstock.capture.lazy.library import library
from penstock.plan.recorded import Recorded
from penstock.plan.schedule import Integers
from penstock.plan.slots import ranges
from penstock.plan.step_kinds import KeyOf, Row, StepKind
from penstock.run.step_blocks import OpaqueBlock

#: Longer graphs are not joined: making their block would take more time than it ever saves.
MOST_RECORDS = 2_000

Mask = npt.NDArray[np.bool_]


class Renaming(NamedTuple):
    """Values that go by other numbers now."""

    #: Ascending.
    old: Integers = np.empty(0, np.int64)
    new: Integers = np.empty(0, np.int64)

    def __call__(self, values: Integers) -> Integers:
        """The numbers that values have now."""
        if not len(self.old):
            return values
        places = np.minimum(np.searchsorted(self.old, values), len(self.old) - 1)
        return np.where(self.old[places] == values, self.new[places], values)


def join_graphs(recorded: Recorded, next_value: int) -> tuple[Recorded, Renaming]:
    """The records with equal graphs joined; new values are numbered from `next_value` on."""
    if not len(recorded.kinds):
        return recorded, Renaming()
    graphs = _Graphs(recorded, next_value)
    joined = graphs.find_joined()
    if not joined:
        return recorded, Renaming()
    return _Joining(graphs, joined, next_value).finish(recorded)


class _Part(NamedTuple):
    """Where one graph is: among the records, their operands, and the values they make."""

    records: slice
    operands: slice
    made: slice


class _Graphs:
    """The records of a flush, those of each graph together."""

    def __init__(self, recorded: Recorded, next_value: int) -> None:
        self.order = np.argsort(recorded.instances, kind="stable")
        self.instances = recorded.instances[self.order]
        self.kinds = recorded.kinds[self.order]
        present, place = np.unique(self.kinds, return_inverse=True)
        found = [library.kinds[number] for number in present.tolist()]

        def by_record(fact: Callable[[StepKind], Any]) -> Any:
            return np.array([fact(kind) for kind in found])[place]

        self.is_opaque: Mask = by_record(_is_opaque)
        self.is_launch: Mask = by_record(lambda kind: kind.block >= 0)
        self.arity: Integers = by_record(_count_rows)
        made: Integers = by_record(lambda kind: len(kind.results))
        self.draws = np.where(by_record(_has_keys), recorded.draws[self.order], -1)
        self.graph = self._number_graphs()
        starts = np.flatnonzero(np.diff(self.graph, prepend=-1))
        #: Where each graph begins among the records; then their number.
        self.starts = np.append(starts, len(self.kinds))
        self.operands = self._sorted_operands(recorded.operands)
        self.operand_starts = _starts(self.arity, self.starts)
        self.values = ranges(recorded.results[self.order], made)
        self.value_starts = _starts(made, self.starts)
        #: No value that was made here has a lower number.
        self.lowest = int(recorded.results.min())
        self._find_makers(np.repeat(self.graph, made), next_value)
        self._find_needed(recorded.kept, next_value)

    def _place(self, values: Integers) -> Integers:
        """Places of values in arrays by value; -1 for those that were there before."""
        return np.maximum(values - self.lowest, -1)

    def _sorted_operands(self, operands: Integers) -> Integers:
        arity = np.empty_like(self.arity)
        arity[self.order] = self.arity
        first = (np.cumsum(arity) - arity)[self.order]
        found: Integers = operands[ranges(first, self.arity)]
        return found

    def _number_graphs(self) -> Integers:
        """The graph of each record."""
        begins = np.ones(len(self.kinds), np.bool_)
        begins[1:] = self.instances[1:] != self.instances[:-1]
        begins[1:] |= self.is_opaque[1:] | self.is_opaque[:-1]
        return np.cumsum(begins) - 1

    def _find_makers(self, graph_of_value: Integers, next_value: int) -> None:
        """For each operand the graph that makes it, or -1, and its number among what that makes."""
        # the last place stands for all values that were there before
        maker, local = np.full((2, next_value - self.lowest + 1), -1)
        maker[self._place(self.values)] = graph_of_value
        own = np.arange(len(self.values)) - self.value_starts[graph_of_value]
        local[self._place(self.values)] = own
        self.taker = np.repeat(self.graph, self.arity)
        makers = maker[self._place(self.operands)]
        self.is_own = makers == self.taker
        self.numbers = np.where(self.is_own, local[self._place(self.operands)], -1)
        first = self.instances[self.starts[:-1]]
        is_foreign = (makers >= 0) & (first[makers] != first[self.taker])
        self.takes_foreign = np.zeros(len(first), np.bool_)
        self.takes_foreign[self.taker[is_foreign]] = True
        self._number_outside(next_value)

    def _number_outside(self, next_value: int) -> None:
        """Number the values that a graph takes from outside in the order of their first use."""
        outside = np.flatnonzero(~self.is_own)
        keys = self.taker[outside] * next_value + self.operands[outside]
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        rank = np.empty_like(first)
        rank[np.argsort(first)] = np.arange(len(first))
        #: The values from outside, those of each graph together.
        self.outside: Integers = self.operands[outside[np.sort(first)]]
        takers = self.taker[outside[np.sort(first)]]
        self.outside_starts = np.searchsorted(takers, np.arange(len(self.starts)))
        numbers = rank[place] - self.outside_starts[self.taker[outside]]
        self.numbers[outside] = -1 - numbers

    def _find_needed(self, kept: Integers, next_value: int) -> None:
        """Which values are needed outside of the graph that makes them."""
        needed = np.zeros(next_value - self.lowest + 1, np.bool_)
        needed[self._place(kept)] = True
        needed[self._place(self.outside)] = True
        self.needed = needed[self._place(self.values)]

    def part(self, graph: int) -> _Part:
        """Where a graph is."""
        starts = (self.starts, self.operand_starts, self.value_starts)
        return _Part(*(slice(int(at[graph]), int(at[graph + 1])) for at in starts))

    def find_joined(self) -> dict[int, int]:
        """The graphs that are joined, with the step kinds that they become."""
        alike: defaultdict[Any, list[int]] = defaultdict(list)
        for graph in np.flatnonzero(~self.takes_foreign).tolist():
            records = self.part(graph).records
            count = records.stop - records.start
            if 1 < count <= MOST_RECORDS and self.is_launch[records].any():
                alike[self._shape(graph).key].append(graph)
        found: dict[int, int] = {}
        for graphs in alike.values():
            kind = self._join(graphs) if len(graphs) > 1 else -1
            if kind >= 0:
                found.update(dict.fromkeys(graphs, kind))
        return dict(sorted(found.items()))

    def _join(self, graphs: Sequence[int]) -> int:
        """The step kind of equal graphs, which leave what any of them must; -1 for none."""
        made = [self.part(graph).made for graph in graphs]
        needed = np.logical_or.reduce([self.needed[places] for places in made])
        kind = step_kind_of(self._shape(graphs[0]), needed) if needed.any() else -1
        if kind >= 0:
            for places in made:
                self.needed[places] = needed
        return kind

    def _shape(self, graph: int) -> GraphShape:
        records, operands, _ = self.part(graph)
        draws = self.draws[records]
        offsets = np.where(draws < 0, 0, draws - self.first_draw(graph))
        return GraphShape(self.kinds[records], self.numbers[operands], offsets)

    def first_draw(self, graph: int) -> int:
        """The first random draw of a graph; 0 where there is none."""
        draws = self.draws[self.part(graph).records]
        drawn = draws[draws >= 0]
        return int(drawn[0]) if len(drawn) else 0


class _Joining:
    """Puts joined graphs in the place of their records."""

    def __init__(self, graphs: _Graphs, joined: dict[int, int], next_value: int) -> None:
        self._graphs = graphs
        self._kinds = np.array(list(joined.values()), np.int64)
        self._joined = np.array(list(joined), np.int64)
        self._is_joined = np.zeros(len(graphs.starts) - 1, np.bool_)
        self._is_joined[self._joined] = True
        made_by = np.repeat(np.arange(len(self._is_joined)), np.diff(graphs.value_starts))
        is_left = graphs.needed & self._is_joined[made_by]
        #: The values that each joined graph leaves, and their new numbers.
        self._left = graphs.values[is_left]
        counts = np.bincount(made_by[is_left], minlength=len(self._is_joined))[self._joined]
        self._results = next_value + np.cumsum(counts) - counts
        order = np.argsort(self._left)
        self.renaming = Renaming(self._left[order], (next_value + order).astype(np.int64))

    def finish(self, recorded: Recorded) -> tuple[Recorded, Renaming]:
        """The records that are left, and those of joined graphs where these began."""
        graphs, renaming = self._graphs, self.renaming
        stays = ~self._is_joined[graphs.graph]
        places = graphs.order[stays], graphs.order[graphs.starts[self._joined]]
        order = np.argsort(np.concatenate(places))
        outside = np.diff(graphs.outside_starts)[self._joined]
        draws = [graphs.first_draw(graph) for graph in self._joined.tolist()]

        def merged(single: Integers, whole: Any) -> Integers:
            return np.concatenate((single, np.asarray(whole, np.int64)))[order]

        counts = np.concatenate((graphs.arity[stays], outside))
        operands = np.concatenate((self._operands(stays), self._outside(outside)))
        firsts = np.cumsum(counts) - counts
        firsts_of = graphs.instances[graphs.starts[self._joined]]
        made = replace(
            recorded,
            kinds=merged(graphs.kinds[stays], self._kinds),
            operands=renaming(operands[ranges(firsts[order], counts[order])]),
            results=merged(recorded.results[places[0]], self._results),
            instances=merged(graphs.instances[stays], firsts_of),
            draws=merged(recorded.draws[places[0]], draws),
            kept=np.sort(renaming(recorded.kept)),
        )
        return made, renaming

    def _operands(self, stays: Mask) -> Integers:
        return self._graphs.operands[np.repeat(stays, self._graphs.arity)]

    def _outside(self, counts: Integers) -> Integers:
        """What joined graphs take."""
        starts = self._graphs.outside_starts[self._joined]
        return self._graphs.outside[ranges(starts, counts)]


def _starts(counts: Integers, graphs: Integers) -> Integers:
    """Where each graph begins among things that records have `counts` of."""
    found: Integers = np.append(0, np.cumsum(counts))[graphs]
    return found


def _is_opaque(kind: StepKind) -> bool:
    return kind.block >= 0 and isinstance(library.blocks[kind.block], OpaqueBlock)


def _count_rows(kind: StepKind) -> int:
    return sum(isinstance(operand, Row) for operand in kind.operands)


def _has_keys(kind: StepKind) -> bool:
    return any(isinstance(operand, KeyOf) for operand in kind.operands)
