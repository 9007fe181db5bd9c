"""The ways to run a program of the table: each takes a case and returns one output per instance.

To add a way, add a line to `WAYS`. The first is the one that all others are compared with. Ways run
on one case after each other, as the calls of a program do, but for those that make another graph of
it: what they share is built once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch

import penstock as ps
from penstock.autodiff.bounded import dividing
from penstock.passes import windows
from penstock.plan.limits import limits
from penstock.plan.planners import planning
from penstock.run.distinct import distinct_always
from penstock.run.native.choice import native_loops
from penstock.run.windows import loop_windows
from tests.fused import poured_without_graphs
from tests.placing import placed_in_turn, slow_device
from tests.semantics.agreement import ask_for_gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.table import Case
from tests.strips import in_strips

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


def run_map_interpreted(case: Case) -> list[Any]:
    """All instances at once, with loops over scalars in the machine."""
    with native_loops(False):
        return run_map(case)


def run_map_tiny_lookahead(case: Case) -> list[Any]:
    """All instances at once, with a planner that may hardly run ahead."""
    with tiny_lookahead():
        return run_map(case)


def run_map_native(case: Case) -> list[Any]:
    """All instances at once, planned by native code where it can; no plan of another way serves."""
    with planning("always"), limits(admitted_rows=(1 << 14) - 1):
        return run_map(case)


def run_map_collated(case: Case) -> list[Any]:
    """All instances at once, bound beforehand, with a plan that was sent through a pipe."""
    function: Any = case.traced
    with limits(admitted_rows=(1 << 14) - 2):
        batch = function.collate([tuple(instance) for instance in case.instances])
        batch.plans = pickle.loads(pickle.dumps(batch.plans))
        return function.map(batch)  # type: ignore[no-any-return]


def run_map_partitioned(case: Case) -> list[Any]:
    """All instances at once, every other torch call on a second device, which is slower."""
    with placed_in_turn(), slow_device(1):
        return run_map(case)


def run_map_windows(case: Case) -> list[Any]:
    """All instances at once, two iterations of counted loops at a time."""
    with loop_windows(True), patch.object(windows, "WINDOW", 2):
        return run_map(case)


def run_map_distinct(case: Case) -> list[Any]:
    """All instances at once; rows that read the same whole numbers are computed once."""
    with distinct_always():
        return run_map(case)


def run_map_poured(case: Case) -> list[Any]:
    """All instances at once, in a template that has room for more."""
    with poured_without_graphs():
        return run_map(case)


def run_map_strips(case: Case) -> list[Any]:
    """All instances at once, launches run by native code as far as they can."""
    with in_strips():
        run_map(case)
        return run_map(case)


def run_map_strips_again(case: Case) -> list[Any]:
    """The same, with a plan that was kept."""
    with in_strips(keeps_plans=True):
        run_map(case)
        return run_map(case)


def run_swapped(case: Case) -> list[Any]:
    """All instances at once; hardly anything that backward needs may stay in memory."""
    with ps.memory("swap", budget=600):
        return run_map(case)


def run_recomputed(case: Case) -> list[Any]:
    """All instances at once; what backward needs is computed again, a few launches at a time."""
    with ps.memory("recompute", budget=600):
        return run_map(case)


def run_divided(case: Case) -> list[Any]:
    """The same, and launches run row by row, where they can be divided."""
    with patch.object(dividing, "LEAST_ROWS", 1), ps.memory("recompute", budget=2):
        return run_map(case)


def run_divided_and_swapped(case: Case) -> list[Any]:
    """The same, and what is saved for each row leaves memory by itself."""
    with patch.object(dividing, "LEAST_ROWS", 1), ps.memory("swap", budget=2):
        return run_map(case)


def run_converted(case: Case) -> list[Any]:
    """The plain program with its control flow converted, one instance at a time."""
    return [case.converted(*instance) for instance in case.instances]


def run_converted_map(case: Case) -> list[Any]:
    """The plain program with its control flow converted, all instances at once."""
    columns = [list(column) for column in zip(*case.instances, strict=True)]
    return case.converted.map(*columns)  # type: ignore[attr-defined]


def run_converted_eager(case: Case) -> list[Any]:
    """The plain program as a `ps.function` that runs as plain Python."""
    with ps.set_eager(True):
        return [case.converted(*instance) for instance in case.instances]


def run_recorded_map(case: Case) -> list[Any]:
    """The plain program as unchanged eager code, all instances at once."""
    columns = [list(column) for column in zip(*case.instances, strict=True)]
    return ps.map(case.plain, *columns)  # type: ignore[no-any-return]


def run_recorded_calls(case: Case) -> list[Any]:
    """The plain program as unchanged eager code, with every torch call a step."""
    columns = [list(column) for column in zip(*case.instances, strict=True)]
    return ps.map(case.plain, *columns, granularity="op")  # type: ignore[no-any-return]


def tiny_lookahead() -> AbstractContextManager[Any]:
    """The smallest bounds that the planner accepts."""
    return limits(live_rows=2, admitted_rows=1)


WAYS: dict[str, Way] = {
    "plain": run_plain,
    "eager": run_eager,
    "graph": run_graph,
    "map": run_map,
    "map_interpreted": run_map_interpreted,
    "map_tiny_lookahead": run_map_tiny_lookahead,
    "map_native": run_map_native,
    "map_collated": run_map_collated,
    "map_partitioned": run_map_partitioned,
    "map_windows": run_map_windows,
    "map_distinct": run_map_distinct,
    "map_poured": run_map_poured,
    "map_strips": run_map_strips,
    "map_strips_again": run_map_strips_again,
    "swapped": run_swapped,
    "recomputed": run_recomputed,
    "divided": run_divided,
    "divided_and_swapped": run_divided_and_swapped,
    "converted_eager": run_converted_eager,
    "converted": run_converted,
    "converted_map": run_converted_map,
    "recorded_map": run_recorded_map,
    "recorded_calls": run_recorded_calls,
}


def around(way: str) -> AbstractContextManager[Any]:
    """What holds around backward passes too."""
    if way in ("map_strips", "map_strips_again"):
        return in_strips(keeps_plans=way == "map_strips_again")
    return nullcontext()


#: The ways that convert the plain program.
CONVERTED = ("converted_eager", "converted", "converted_map")

#: The ways that record eager code.
RECORDED = ("recorded_map", "recorded_calls")

#: The ways that run no graph.
WITHOUT_GRAPH = ("plain", "eager", "converted_eager")

#: The ways that differ from `map` in what is kept for gradients only.
ONLY_TAPED = ("swapped", "recomputed", "divided", "divided_and_swapped")

#: The ways whose planner is no `Machine`, and cannot be looked into.
NOT_LOOKED_INTO = ("map_native", "map_collated", "map_strips", "map_strips_again")

#: The ways whose first call makes a graph of its own.
OWN_GRAPH = ("map_interpreted", "map_partitioned", "map_windows")

#: The programs with loops that run as native code; of all others `map_interpreted` is `map`.
WITH_CLOSED_LOOPS = (
    "newton",
    "bisection",
    "collatz",
    "zero_trip_loops",
    "map_with_control_flow",
)

#: The programs with loops that run in windows; of all others `map_windows` is `map`.
WITH_WINDOWS = (
    "growing_array",
    "lstm_by_tensor_array",
    "loop_in_recursion",
    "forked_versions",
    "unstacked_permutation",
    "stacked_sequences",
    "beam_search",
    "nested_loops",
    "cellular_automaton",
    "running_statistics",
    "attention_in_a_loop",
    "lstm_by_scan",
    "lstm_by_while_loop",
    "attention_decoder",
    "discounted_returns",
    "horner_both_ways",
    "slices_of_slices",
    "prefixes_in_a_loop",
)

#: The programs with blocks that read nothing but whole numbers of a row; of all others
#: `map_distinct` is `map`.
WITH_WHOLE_NUMBERS = (
    "shift_reduce_parser",
    "greedy_decoding",
    "cellular_automaton",
    "fold_over_children",
    "map_over_children",
    "slices_of_slices",
    "binary_tree_lstm",
    "child_sum_tree_lstm",
    "loop_in_recursion",
)


def ways_for(name: str, *left_out: str) -> list[str]:
    """The ways to run a program that are not the same by another name."""
    same = {
        "map_interpreted": name not in WITH_CLOSED_LOOPS,
        "map_windows": name not in WITH_WINDOWS,
        "map_distinct": name not in WITH_WHOLE_NUMBERS,
    }
    return [way for way in WAYS if way not in left_out and not same.get(way)]


def case_for(name: str, dtype: torch.dtype, way: str, *, with_gradients: bool = False) -> Case:
    """The case on which a way runs; tests that ask for it go through the ways of one program, then
    through those of the next.
    """
    return _case(name, dtype, way if way in OWN_GRAPH else "", with_gradients)


@lru_cache(maxsize=3)
def _case(name: str, dtype: torch.dtype, way: str, with_gradients: bool) -> Case:
    case = PROGRAMS[name].case(dtype)
    if with_gradients:
        ask_for_gradients(case)
    return case
