"""Memory follows live rows: a loop may run ten times as long in the same space."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from penstock.errors import PenstockError
from penstock.plan.limits import limits
from penstock.plan.machine import Machine
from penstock.plan.schedule import Launch
from penstock.run.engine import Run
from tests.inside import assert_no_leak, collected_machines

pytestmark = pytest.mark.usefixtures("interpreted_loops")

INSTANCES = 32


@ps.function
def until_small(x, limit):
    """A loop whose predicate is computed as data, one step at a time."""
    return ps.while_loop(lambda y: (y.sum() - limit.sum()) > 0.5, lambda y: y - 1, x)


@ps.function
def counted(x, n):
    """A loop whose trip count is known to the planner."""
    return ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, torch.sin(y)), (0, x))[1]


def run_until_small(steps: int) -> Machine:
    starts = [torch.tensor([float(steps - k)]) for k in range(INSTANCES)]
    with torch.no_grad(), collected_machines() as machines:
        results = until_small.map(starts, [torch.zeros(1)] * INSTANCES)
    assert all(result.item() == 0 for result in results)
    return machines[0]


def run_counted(steps: int) -> Machine:
    counts = [steps - k for k in range(INSTANCES)]
    with torch.no_grad(), collected_machines() as machines:
        counted.map([torch.ones(1)] * INSTANCES, counts)
    return machines[0]


@pytest.mark.parametrize("run", [run_until_small, run_counted])
def test_a_loop_that_runs_ten_times_as_long_takes_no_more_room(run):
    with limits(loop_rows=1024):  # how far control may run ahead; the short loop is to meet it
        short, long = run(300), run(3_000)
    assert [space.end for space in long.spaces] == [space.end for space in short.spaces]
    assert long.most_live_rows <= short.most_live_rows + INSTANCES
    assert [rows.capacity for rows in long.rows] == [rows.capacity for rows in short.rows]
    assert_no_leak([short, long])


def test_an_array_written_in_a_long_loop_keeps_one_version():
    @ps.function
    def last_of(x, n):
        array = ps.while_loop(
            lambda i, a: i < n, lambda i, a: (i + 1, a.write(i % 4, x + i)), (0, ps.TensorArray(4))
        )[1]
        return array.read(0)

    with torch.no_grad(), collected_machines() as machines:
        last_of.map([torch.ones(1)] * 8, [2_000] * 8)
    for table in machines[0].array_tables.values():
        assert len(table.base) <= 1024
    assert_no_leak(machines)


def test_a_call_does_not_keep_its_instructions(monkeypatch):
    """Only `schedule` keeps them; a counted loop of a million steps would fill the memory."""
    runs: list[Run] = []
    seen: list[int] = []
    carry_out = Run._carry_out

    def watch(run, window):
        runs.append(run)
        seen.append(sum(isinstance(item, Launch) for item in window))
        return carry_out(run, window)

    monkeypatch.setattr(Run, "_carry_out", watch)
    run_counted(3_000)
    assert sum(seen) == 3_000
    assert max(seen) <= 600  # a window at a time
    assert all(run.schedule.instructions == [] for run in runs)


def test_an_endless_recursion_stops_long_before_memory_is_gone():
    @ps.function
    def doubling(i):
        return doubling(i + 1) + doubling(i + 1)

    with limits(most_rows=5_000), pytest.raises(PenstockError):
        doubling(torch.tensor(0))
