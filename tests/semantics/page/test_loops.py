"""docs/semantics.md: loops, fork and join (S46 to S57)."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from penstock.errors import SizeError
from penstock.ir.graph import Enter
from tests.semantics.page.watch import Watch


@ps.function
def repeat(x, n):
    """sin(sin(... x)) n times, and how often."""
    return ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x.sin()), (0, x))


def test_s46_enter_waits_for_initial_values_and_for_what_the_loop_reads(watch: Watch):
    @ps.function
    def program(x, y, n):
        start, scale = x.exp(), y.cosh()

        def body(i, x):
            return i + 1, ps.while_loop(
                lambda j, x: j < i, lambda j, x: (j + 1, x * scale), (0, x)
            )[1]

        return ps.while_loop(lambda i, x: i < n, body, (0, start))[1]

    program.map(torch.ones(2, 3), torch.ones(2, 3), [2, 3])
    enter = next(n for n in watch.nodes(Enter) if n.context == 0)
    assert len(enter.inputs) == enter.operation.carried + 1  # what the inner loop reads counts too
    first = min(watch.when("create", "program.loop"))
    made = watch.block_firings("exp") + watch.block_firings("cosh")
    assert made
    assert max(made) < first


def test_s47_what_a_loop_reads_from_outside_is_stored_once(watch: Watch):
    @ps.function
    def program(x, n):
        scale = x.exp()
        return ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * scale), (0, x))[1]

    program(torch.ones(3), 4)
    enter = watch.nodes(Enter)[0]
    scale = enter.inputs[-1]
    assert scale in watch.machine.linked.contexts[0].slot_wires
    loop = watch.machine.linked.contexts[1]
    assert scale not in loop.slot_wires
    body = next(node for node in loop.nodes if node.kind == "block")
    assert [access.above for access in body.access if access.above] == [(0,)]


def test_s48_a_row_whose_condition_fails_exits_with_its_carried_values(watch: Watch):
    counts = [int(i) for i, _ in repeat.map(torch.ones(3), [1, 3, 2])]
    assert counts == [1, 3, 2]
    passes = [e for e in watch.fired("pass") if e.detail.node.arm == 1]
    exited = [row for event in passes for row in event.rows]
    # each loop exits once for each result that leaves
    assert len(exited) == 3 * len({event.detail for event in passes})


def test_s49_the_next_row_is_made_when_the_condition_holds(watch: Watch):
    repeat(torch.ones(()), 2)
    made = watch.when("create", "repeat.loop")
    switched = [k for k, e in enumerate(watch.events) if e.what == "fire" and e.name == "switch"]
    assert len(made) == 3
    assert switched[0] < made[1] < switched[1] < made[2] < switched[2]
    assert made[-1] < min(watch.block_firings("sin"))


def test_s50_control_runs_ahead_of_data(watch: Watch):
    repeat.map(torch.ones(3), [2, 5, 3])
    assert max(watch.when("create", "repeat.loop")) < min(watch.block_firings("sin"))
    assert [launch.rows for launch in watch.launches()] == [3, 3, 2, 1, 1]
    loop = watch.machine.linked.contexts[1]
    assert len(loop.inputs) == 2  # the counter and x are groups of their own


def test_s51_results_leave_one_by_one(watch: Watch):
    @ps.function
    def program(x, n):
        count, y = repeat(x, n)
        return ps.while_loop(lambda k: k < 2 * count, lambda k: (k + 1,), (0,))[0], y

    program.map(torch.ones(2), [2, 3])
    assert max(watch.when("create", "program.loop")) < min(watch.block_firings("sin"))


def test_s52_a_loop_may_run_no_iteration(watch: Watch):
    x = torch.arange(3.0)
    results = repeat.map(x, [0, -1, 0])
    assert watch.launches() == []
    assert [int(count) for count, _ in results] == [0, 0, 0]
    assert torch.equal(torch.stack([value for _, value in results]), x)


def test_s53_maximum_iterations_ends_a_loop(watch: Watch):
    @ps.function
    def program(x, n):
        def body(i, x):
            return i + 1, x.sin()

        return ps.while_loop(lambda i, x: i < n, body, (0, x), maximum_iterations=3)

    assert [int(i) for i, _ in program.map(torch.ones(3), [2, 3, 100])] == [2, 3, 3]
    assert len(watch.launches()) == 3

    @ps.function
    def stopped(x):
        return ps.while_loop(lambda x: x == x, lambda x: (x + 1,), (x,), maximum_iterations=0)[0]

    assert stopped(torch.tensor(1.0)).item() == 1


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_s54_parallel_iterations_bounds_bodies_in_flight(watch: Watch, bound: int):
    @ps.function
    def program(x, n):
        def body(i, x):
            return i + 1, x.sin()

        return ps.while_loop(lambda i, x: i < n, body, (0, x), parallel_iterations=bound)[1]

    expected = repeat.map(torch.ones(2), [6, 5])
    results = program.map(torch.ones(2), [6, 5])
    assert torch.equal(torch.stack(results), torch.stack([value for _, value in expected]))
    body_of: dict[int, int] = {}  # the row that entered the loop, by row of the iteration
    running: dict[int, set[int]] = {0: set(), 1: set()}
    most = 0
    for event in watch.events:
        if event.what == "create" and event.name == "program.loop":
            body_of |= dict(zip(event.rows, event.detail["parent"].tolist()))
        elif event.what == "end" and event.name == "program.loop":
            for row in event.rows:
                running[body_of[row]].discard(row)
        elif event.what == "fire" and event.detail.context == 1 and event.detail.node.arm == 2:
            for row in event.rows:
                running[body_of[row]].add(row)
        most = max(most, *(len(rows) for rows in running.values()))
    assert most == bound


@ps.function
def sines(xs):
    return ps.map_fn(lambda x: (x.sin(), (x * 2).sum()), xs)


def test_s55_a_fork_makes_all_rows_at_once(watch: Watch):
    sines.map([torch.ones(2, 3), torch.ones(1, 3), torch.ones(3, 3)])
    (made,) = (watch.events[k] for k in watch.when("create", "sines.each"))
    assert made.detail["parent"].tolist() == [0, 0, 1, 2, 2, 2]
    assert made.detail["count"].tolist() == [0, 1, 0, 0, 1, 2]
    assert [launch.rows for launch in watch.launches("sin")] == [6]
    products = ps.function(lambda x, y, n: ps.map_fn(lambda p: p[0] * p[1], (x[:n], y[:n])))
    with pytest.raises(SizeError, match="same length"):
        products(torch.ones(3), torch.ones(2), 3)


def test_s56_results_are_written_by_element(watch: Watch):
    @ps.function
    def halvings(xs):
        def halve(x):
            return ps.while_loop(lambda x, k: x > 1, lambda x, k: (x / 2, k + 1), (x, 0))[1]

        return ps.map_fn(halve, xs)

    assert halvings(torch.tensor([8.0, 1.0, 4.0, 2.0])).tolist() == [3, 0, 2, 1]
    (table,) = watch.machine.array_tables.values()
    assert table.top >= 1


def test_s57_each_array_arrives_when_it_is_full(watch: Watch):
    @ps.function
    def program(xs):
        # the first result needs only control, the second a block
        return ps.map_fn(lambda x: (x, (x * 1.5).sin()), xs)

    program.map([torch.arange(3), torch.arange(2)])
    fork = next(n for n in watch.machine.linked.contexts[0].nodes if n.kind == "fork")
    first, second = fork.outputs
    arrived = [
        min(k for k, e in enumerate(watch.events) if e.what == "deliver" and e.detail is group)
        for group in (first, second)
    ]
    assert arrived[0] < min(watch.block_firings("sin")) < arrived[1]
    empty = program.map([torch.arange(0), torch.arange(2)])[0]
    assert [leaf.shape for leaf in empty] == [(0,), (0,)]
