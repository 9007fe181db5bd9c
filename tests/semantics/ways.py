"""The ways to run a program of the table: each takes a case and returns one output per instance.

To add a way, add a line to `WAYS`. The first is the one that all others are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import penstock as ps
from penstock.plan.limits import limits
from tests.semantics.table import Case

Way = Callable[[Case], list[Any]]


def run_plain(case: Case) -> list[Any]:
    """Python and torch alone."""
    return [case.plain(*instance) for instance in case.instances]


def run_eager(case: Case) -> list[Any]:
    """The combinators as plain Python."""
    with ps.set_eager(True):
        return [case.traced(*instance) for instance in case.instances]


def run_graph(case: Case) -> list[Any]:
    """The graph, one instance at a time."""
    return [case.traced(*instance) for instance in case.instances]


def run_map(case: Case) -> list[Any]:
    """The graph, all instances at once."""
    columns = [list(column) for column in zip(*case.instances, strict=True)]
    return case.traced.map(*columns)  # type: ignore[attr-defined]


def run_map_tiny_lookahead(case: Case) -> list[Any]:
    """All instances at once, with a planner that may hardly run ahead."""
    with tiny_lookahead():
        return run_map(case)


def tiny_lookahead() -> AbstractContextManager[Any]:
    """The smallest bounds that the planner accepts."""
    return limits(live_rows=2, admitted_rows=1)


WAYS: dict[str, Way] = {
    "plain": run_plain,
    "eager": run_eager,
    "graph": run_graph,
    "map": run_map,
    "map_tiny_lookahead": run_map_tiny_lookahead,
}

#: The ways that run no graph.
WITHOUT_GRAPH = ("plain", "eager")
