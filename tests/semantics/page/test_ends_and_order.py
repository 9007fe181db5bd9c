"""docs/semantics.md: how rows end, how slots are freed, order, bounds, determinism, devices (S75 to
S98).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.errors import IndexRangeError, LoopTypeError, RecursionLimitError
from penstock.ir.graph import Block
from penstock.passes.rank import rank_nodes
from penstock.plan.faults import PlanningError
from penstock.plan.limits import limits
from penstock.plan.machine import Machine
from penstock.plan.schedule import Chunk, Kind, Picks, Read
from penstock.plan.slots import FIRST_CHUNK, SlotSpace
from penstock.run import engine
from tests.semantics.page.watch import Watch


@ps.function
def repeat(x, n):
    return ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x.sin()), (0, x))[1]


@ps.function
def halve(x):
    """A loop whose condition is computed as data."""
    return ps.while_loop(lambda x: (x * x).sum() > 1, lambda x: (x * 0.5,), (x,))[0]


@ps.function
def fibonacci(n, x):
    def both():
        return fibonacci(n - 1, x) + fibonacci(n - 2, x)

    return ps.cond(n < 2, lambda: x.exp(), both)


@ps.function
def endless(n, x):
    return ps.cond(n < 0, lambda: x, lambda: endless(n + 1, x) + endless(n + 1, x))


# ---- how rows end --------------------------------------------------------------------------------


def test_s75_todo_counts_queued_nodes_and_children(monkeypatch):
    seen: list[int] = []
    original = Machine.create

    def create(machine, context, *args, **kwargs):
        rows = original(machine, context, *args, **kwargs)
        linked = machine.linked.contexts[context]
        children = len(linked.arms[0].calls)
        seen.append(children)
        expected = linked.arms[0].todo + (linked.start is not None) + children
        assert (machine.rows[context].todo[rows] == expected).all()
        return rows

    monkeypatch.setattr(Machine, "create", create)

    @ps.function
    def program(x):
        return x.sin() + repeat(x.cos(), 2)

    program(torch.ones(3))
    # the callee's row is made first, within the making of the entry's, which counts it
    assert seen[:2] == [0, 1]


def test_s76_a_row_ends_when_it_waits_for_nothing(watch: Watch):
    fibonacci.map([3, 4], torch.ones(2))
    ended = dict.fromkeys(("fibonacci.main", "fibonacci"), 0)
    created = dict(ended)
    for event in watch.events:
        counts = {"create": created, "end": ended}.get(event.what)
        if counts is not None:
            counts[event.name] += len(event.rows)
    assert created == ended == {"fibonacci.main": 2, "fibonacci": 5 + 9}
    # rows are used again
    with limits(live_rows=2, admitted_rows=1):
        fibonacci(8, torch.ones(()))
    home = watch.machine.rows[1]
    assert home.top < sum(len(e.rows) for e in watch.events if e.what == "create")
    assert home.free_top == home.top
    assert (home.slots[:, : home.top] == -1).all()


def test_s77_iterations_end_by_themselves(watch: Watch):
    repeat(torch.ones(()), 4)
    parents = {
        int(parent)
        for k in watch.when("create", "repeat.loop")
        for parent in watch.events[k].detail["parent"]
    }
    assert parents == {0}
    ends = watch.when("end", "repeat.loop")
    firings = watch.block_firings("sin")
    assert ends[0] < firings[-1]  # the first iterations are gone while the last still work
    assert watch.when("end", "repeat")[0] > max(ends)


def test_s78_rows_that_wait_for_ever_are_an_error(monkeypatch):
    original = Machine._start

    def start(machine, count):
        original(machine, count)
        machine.rows[0].todo[0] += 1

    monkeypatch.setattr(Machine, "_start", start)
    with pytest.raises(PlanningError, match="1 rows wait"):
        repeat.map(torch.ones(2), [1, 2])


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (repeat, (torch.ones(3), [0, 2, 5])),
        (halve, (torch.rand(3, 2) * 10,)),
        (fibonacci, ([1, 5, 3], torch.ones(3))),
        (
            ps.function(lambda xs: ps.map_fn(lambda x: x[:, None] * x, xs)[0]),
            (torch.ones(2, 3, 4),),
        ),
    ],
    ids=["loop", "data", "recursion", "for-each"],
)
def test_s79_nothing_is_live_after_a_call(watch: Watch, function, columns):
    function.map(*columns)
    assert watch.machine.audit() == {"rows": 0, "tables": 0, "slots": 0}


# ---- how slots are freed -------------------------------------------------------------------------


def test_s80_a_slot_is_in_use_while_something_holds_it(watch: Watch):
    repeat.map(torch.ones(3), [2, 2, 2])
    (space,) = watch.machine.spaces
    results = watch.machine.result_slots[0]
    arguments = watch.machine.input_slots[0]
    used = np.flatnonzero(space.counts[: space.end] > 0)
    # after the call: its inputs and its outputs, and nothing of what was in between
    assert used.tolist() == sorted([*arguments.tolist(), *results.tolist()])
    assert len(watch.launches()) == 2

    array = ps.function(lambda x: ps.TensorArray(2).write(0, x).write(1, x.sin()).stack())
    array.map(torch.ones(3))
    assert watch.machine.audit() == {"rows": 0, "tables": 0, "slots": 0}


def test_s81_inputs_have_chunks_of_their_own(watch: Watch):
    x = torch.ones(5, 3)
    repeat.map(x, [1] * 5)
    (arena,) = watch.run.arenas
    assert arena.chunks[0].data_ptr() == x.data_ptr()
    assert watch.machine.spaces[0].counts[:5].tolist() == [1] * 5
    (launch,) = watch.launches()
    assert launch.targets[0].start >= 5


def test_s82_free_slots_are_looked_for_when_a_chunk_is_full(monkeypatch):
    collections: list[int] = []
    original = SlotSpace._collect
    monkeypatch.setattr(
        SlotSpace, "_collect", lambda space: (collections.append(space.end), original(space))[1]
    )
    space = SlotSpace(0, Kind("float32", (), "cpu"))
    first = space.allocate(FIRST_CHUNK)
    assert (space.end, collections) == (FIRST_CHUNK, [0])
    # all in use: the arena doubles
    second = space.allocate(8)
    assert (second.start, space.end) == (FIRST_CHUNK, 2 * FIRST_CHUNK)
    # nothing is looked for while the chunk has room
    before = list(collections)
    third = space.allocate(FIRST_CHUNK - 8)
    assert collections == before
    # less than half is free: it grows again; half and more: slots are used again
    space.release(second)
    fourth = space.allocate(8)
    assert fourth.start == 2 * FIRST_CHUNK
    assert space.end == 4 * FIRST_CHUNK
    for target in (first, third, fourth):
        space.release(target)
    space.allocate(2 * FIRST_CHUNK - 8)
    again = space.allocate(100)
    assert again.start + again.count <= 2 * FIRST_CHUNK + 8
    assert space.end == 4 * FIRST_CHUNK


def test_s83_chunks_never_move(watch: Watch, monkeypatch):
    places: dict[tuple[int, int], int] = {}
    original = engine.Run._launch

    def launch(run, item):
        for number, arena in enumerate(run.arenas):
            for position, chunk in enumerate(arena.chunks):
                known = places.setdefault((number, position), chunk.data_ptr())
                assert known == chunk.data_ptr()
        original(run, item)

    monkeypatch.setattr(engine.Run, "_launch", launch)
    monkeypatch.setattr(engine.Run, "window", 1)  # chunks of one window become one tensor
    fibonacci.map([11] * 40, torch.ones(40))
    assert len(places) > 2
    chunks = [item for item in watch.instructions if isinstance(item, Chunk)]
    ends = {}
    for chunk in chunks:
        assert chunk.start >= ends.get(chunk.arena, 0)
        ends[chunk.arena] = chunk.start + chunk.count


def test_s84_the_memory_of_a_loop_does_not_grow_with_its_iterations(watch: Watch):
    def cost(iterations):
        with limits(loop_rows=64):
            repeat.map(torch.ones(8), [iterations] * 8)
        slots = sum(space.end for space in watch.machine.spaces)
        return watch.machine.most_live_rows, slots, watch.machine.rows[1].capacity

    assert cost(2000) == cost(400)


# ---- order ---------------------------------------------------------------------------------------


def test_s85_control_comes_before_data(watch: Watch):
    @ps.function
    def program(x, n):
        y = x.sin()  # ready at once
        m = ps.while_loop(lambda i: i < n, lambda i: (i + 1,), (0,))[0]
        return ps.cond(m > 1, lambda: y.cos(), lambda: y)

    program.map(torch.ones(3), [1, 2, 3])
    assert max(watch.when("create", "program.loop")) < min(watch.block_firings("sin"))
    linked = watch.machine.linked
    expanding = {
        node.kind for context in linked.contexts for node in context.nodes if node.is_expanding
    }
    assert expanding == {"enter", "compute", "pass"}
    assert all(context.start is None or context.start.is_expanding for context in linked.contexts)
    repeat.map(torch.ones(3), [1, 2, 3])
    kinds = [(e.name, e.detail.is_expanding) for e in watch.events if e.what == "fire"]
    queued = [is_expanding for kind, is_expanding in kinds if kind not in ("block", "read")]
    assert any(queued)


def test_s85b_rows_that_leave_one_loop_enter_the_next_together(watch: Watch):
    @ps.function
    def twice(x, n, m):
        return repeat_under(repeat_under(x, n, torch.sin), m, torch.cos)

    def repeat_under(x, n, step):
        return ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, step(x)), (0, x))[1]

    twice.map(torch.ones(4, 2), [1, 2, 3, 4], [3, 3, 3, 3])
    entered = [event.rows for event in watch.events if event[:2] == ("fire", "enter")]
    assert list(map(len, entered)) == [4, 4]


def test_s86_data_fires_by_rank_then_width_then_number(watch: Watch, monkeypatch):
    chosen: list[tuple[tuple[int, int, int], list[tuple[int, int, int]]]] = []
    original = Machine._advance

    def advance(machine):
        node = original(machine)
        if node is not None:
            chosen.append((machine._urgency(node), [machine._urgency(n) for n in machine.data]))
        return node

    monkeypatch.setattr(Machine, "_advance", advance)

    @ps.function
    def program(x, n):
        y = ps.switch(n, [lambda: x.sin(), lambda: x.cos(), lambda: x.exp()])
        return y * 2

    program.map(torch.ones(6), [0, 1, 1, 2, 2, 2])
    assert len(chosen) == 4
    assert all(taken <= min(left, default=taken) for taken, left in chosen)
    names = [watch.events[k].detail.node.operation.name for k in watch.block_firings("")]
    assert names == ["program:exp", "program:cos", "program:sin", "program:mul"]


def test_s87_rank_is_the_longest_path_without_back_edges():
    @ps.function
    def program(x, n):
        y = ps.cond(n > 0, lambda: x.sin(), lambda: x.cos())

        def body(i, z):
            z = ps.while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z.tanh()), (0, z))[1]
            return i + 1, z.sigmoid()

        z = ps.while_loop(lambda i, z: i < n, body, (0, y))[1]
        return z.exp()

    graph = program.graph(torch.ones(()), 1)
    ranks = {
        node.operation.name.split(":")[1]: rank
        for node, rank in rank_nodes(graph).items()
        if isinstance(node.operation, Block)
    }
    assert ranks == {"sin": 0, "cos": 0, "tanh": 1, "sigmoid": 2, "exp": 3}


def test_s88_reads_that_wait_are_served_together(watch: Watch):
    @ps.function
    def program(x):
        a = ps.cond(x.sum() > 0, lambda: x, lambda: -x)
        b = ps.cond((x * x).prod() > 1, lambda: x, lambda: -x)
        return a + b

    program.map(torch.randn(4, 2))
    reads = [n for n in watch.machine.linked.contexts[0].nodes if n.kind == "read"]
    (read,) = (item for item in watch.instructions if isinstance(item, Read))
    spaces = [watch.machine.place(n.node.inputs[0]).number for n in reads]
    assert [source.arena for source in read.sources] == spaces
    groups = [n.output for n in sorted(reads, key=lambda n: n.number)]
    delivered = [e.detail for e in watch.events if e.what == "deliver" and e.detail in groups]
    assert delivered == groups


def test_s89_a_window_ends_at_a_read_or_after_512_instructions(monkeypatch):
    windows: list[list[object]] = []
    original = engine.Run._carry_out

    def carry_out(run, window):
        windows.append(list(window))
        return original(run, window)

    monkeypatch.setattr(engine.Run, "_carry_out", carry_out)
    halve.map(torch.tensor([[4.0], [32.0]]))
    assert len(windows) > 5
    for window in windows:
        assert not any(isinstance(item, Read) for item in window[:-1])
    assert sum(isinstance(window[-1], Read) for window in windows if window) == len(windows) - 1
    windows.clear()
    repeat(torch.ones(()), 1200)
    assert max(map(len, windows)) == engine.WINDOW == 512


# ---- bounds --------------------------------------------------------------------------------------


def test_s90_over_a_bound_only_what_creates_no_rows_goes_on(watch: Watch):
    with limits(loop_rows=6):
        repeat.map(torch.ones(2), [10, 10])
    live = most = 0
    for event in watch.events:
        if event.name == "repeat.loop" and event.what in ("create", "end"):
            live += len(event.rows) if event.what == "create" else -len(event.rows)
            most = max(most, live)
    assert most <= 6 + 2  # the firing that reaches the bound is the last
    # without the bound all iterations are planned before the first launch
    repeat.map(torch.ones(2), [10, 10])
    assert max(watch.when("create", "repeat.loop")) < min(watch.block_firings("sin"))
    with limits(live_rows=4, admitted_rows=1):
        fibonacci.map([6, 6], torch.ones(2))
    narrow = watch.machine.most_live_rows
    fibonacci.map([6, 6], torch.ones(2))
    assert narrow < watch.machine.most_live_rows


def test_s91_the_newest_calls_and_the_oldest_iterations_go_on(monkeypatch):
    admitted: list[tuple[str, list[int], list[int]]] = []
    original = Machine._admit

    def admit(machine):
        node = machine.expanding[-1]
        waiting = np.concatenate(machine.queues[node]).tolist()
        kind = machine.linked.contexts[node.context].context.kind
        taken: list[int] = []
        fire = machine.fire
        machine.fire = lambda chosen, rows, *rest: (
            taken.extend(rows.tolist()) if chosen is node and not taken else None,
            fire(chosen, rows, *rest),
        )[1]
        original(machine)
        del machine.fire
        admitted.append((kind, waiting, taken))

    monkeypatch.setattr(Machine, "_admit", admit)
    with limits(live_rows=4, admitted_rows=2):
        fibonacci.map([5, 5, 5], torch.ones(3))
        repeat.map(torch.ones(6), [3] * 6)
    assert {kind for kind, _, _ in admitted} == {"function", "loop"}
    for kind, waiting, taken in admitted:
        assert 1 <= len(taken) <= 2
        part = waiting[: len(taken)] if kind == "loop" else waiting[-len(taken) :]
        assert taken == part
    admitted.clear()
    with limits(live_rows=4, admitted_rows=2, most_rows=1024):
        fibonacci.map([5, 5, 5], torch.ones(3))
    assert {len(taken) for _, _, taken in admitted} == {1}


def test_s92_too_many_live_rows_are_an_error():
    with limits(live_rows=100, most_rows=400, depth=10**9):
        with pytest.raises(RecursionLimitError, match="limit    401 rows"):
            endless(0, torch.ones(()))
        assert fibonacci(7, torch.ones(())).shape == ()


def test_s93_too_deep_a_call_is_an_error():
    @ps.function(max_depth=5)
    def down(n, x):
        return ps.cond(n == 0, lambda: x, lambda: down(n - 1, x) + 1)

    assert down(4, torch.tensor(1.0)).item() == 5
    with pytest.raises(RecursionLimitError, match="too deep"):
        down(5, torch.tensor(1.0))
    with limits(depth=3), pytest.raises(RecursionLimitError, match="limit  3 calls"):
        down(3, torch.tensor(1.0))


def test_s94_bounds_change_no_value():
    columns = ([6, 2, 7], torch.rand(3))
    expected = fibonacci.map(*columns)
    launches = len(fibonacci.schedule(*columns).launches)
    for live, admitted in itertools.product((1, 5), (1, 3)):
        with limits(live_rows=live, admitted_rows=admitted):
            assert torch.equal(torch.stack(fibonacci.map(*columns)), torch.stack(expected))
            assert len(fibonacci.schedule(*columns).launches) >= launches


# ---- determinism and results ---------------------------------------------------------------------


def test_s95_same_inputs_same_schedule():
    trees = ps.data.random_binary_trees(20, vocabulary=5, seed=3)

    @ps.function
    def total(tree, i):
        def inner():
            return total(tree, tree.left(i)) + total(tree, tree.right(i))

        return ps.cond(tree.is_leaf(i), lambda: tree.token[i].float() * 2, inner)

    roots = [tree.root for tree in trees]
    digests = {total.schedule(trees, roots).digest() for _ in range(3)}
    assert len(digests) == 1
    assert total.schedule(trees[::-1], roots[::-1]).digest() not in digests
    values = torch.tensor([[9.0], [30.0], [2.0]])
    assert halve.schedule(values).digest() == halve.schedule(values.clone()).digest()


def test_s96_results_are_in_instance_order(watch: Watch):
    x = torch.arange(4.0)
    results = repeat.map(x, [3, 0, 2, 1])
    expected = [x[0].sin().sin().sin(), x[1], x[2].sin().sin(), x[3].sin()]
    assert torch.allclose(torch.stack(results), torch.stack(expected))
    assert isinstance(watch.launches()[0].operands[0], Picks)
    results[1].add_(100)  # no view of an argument
    assert x.tolist() == [0, 1, 2, 3]


def test_s97_an_error_names_instance_and_line():
    @ps.function
    def item(xs, i):
        return xs[i].sin()

    xs = [torch.ones(2)] * 4
    with pytest.raises(IndexRangeError) as found:
        item.map(xs, [0, 5, 9, 1])
    lines = str(found.value).splitlines()
    assert "test_ends_and_order.py" in lines[1]
    assert "in item" in lines[1]
    assert [line.split() for line in lines[2:4]] == [["instance", "1"], ["index", "5"]]
    with pytest.raises(IndexRangeError) as found:
        item(xs[0], 5)
    assert "instance" not in str(found.value)


# ---- devices -------------------------------------------------------------------------------------


def test_s98_a_number_of_the_host_follows_to_the_device_of_what_it_meets():
    @ps.function
    def operand(x, n):
        return x.to("meta") * (n + 1)

    @ps.function
    def initial(x, n):
        add = lambda i, total: (i + 1, total + x.to("meta").sum())  # noqa: E731
        return ps.while_loop(lambda i, total: i < n, add, (0, 0.0))

    @ps.function
    def returned(x, n):
        start = x.to("meta").sum()
        return ps.while_loop(lambda i, t: i < n, lambda i, t: (i + 1, 0.0), (0, start))

    @ps.function
    def branch(x, n):
        return ps.cond(n > 0, lambda: x.to("meta").sum(), lambda: 0.0)

    x = torch.ones(2)
    blocks = [n.operation for n in operand.graph(x, 2).contexts[0].nodes]
    (moved,) = [n for b in blocks for n in b.nodes if n.operation.name == "penstock.follow"]
    assert [str(value.type) for value in (moved.inputs[0], *moved.outputs)] == [
        "int64[]",
        "int64[] on meta",
    ]
    for program in (initial, returned, branch):
        text = str(program.graph(x, 2))
        assert "u0: float32[] on meta = torch.Tensor.to(u1, device(type='meta'))" in text
        assert "compute" in text  # of what steers, on the host

    @ps.function
    def tensor(x):
        return ps.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, x.to("meta")), (0, x))

    with pytest.raises(LoopTypeError, match=r"float32\[2\] on meta"):
        tensor.graph(x)
