"""docs/semantics.md: host and device, blocks, Switch, Merge, Pass, calls (S25 to S45)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.errors import IndexRangeError, PredicateError, SizeError
from penstock.ir.graph import Merge, Pass, Switch, Upload
from penstock.plan import machine as machine_module
from penstock.plan.plan_cache import BoundedPlans
from penstock.plan.schedule import Hosted, Pad, Picks, Read, Span, Store
from penstock.run.executable import Executable
from tests.semantics.page.watch import Watch, slots

# ---- host and device -----------------------------------------------------------------------------


def test_s25_compute_equals_torch(watch: Watch):
    def arithmetic(a, b):
        return (a * b + (a // b), a % b, (a > b) & (b != 0), a.double() / b)

    @ps.function
    def program(a, b, x):
        found = arithmetic(a, b)
        for value in found:  # decided on, so that all of it is control
            x = ps.cond(value != 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return found, x

    pairs = [(7, -2), (-7, 2), (2**62, 4), (-(2**63), 3), (0, 5)]
    results = program.map([a for a, _ in pairs], [b for _, b in pairs], torch.ones(5))
    for (a, b), (result, _) in zip(pairs, results):
        expected = arithmetic(torch.tensor(a), torch.tensor(b))
        assert [leaf.dtype for leaf in result] == [leaf.dtype for leaf in expected]
        assert [leaf.item() for leaf in result] == [leaf.item() for leaf in expected]
    assert watch.fired("compute")
    with pytest.raises(ps.errors.DivisionByZeroError):
        program(1, 0, torch.ones(()))


def test_s26_one_read_serves_all_read_nodes_that_wait(watch: Watch):
    @ps.function
    def program(x):
        a = ps.cond(x.sum() > 0, lambda: x, lambda: -x)
        b = ps.cond(x.prod() > 0, lambda: x + 1, lambda: x - 1)
        return a + b

    program.map(torch.tensor([[1.0, 2.0], [-1.0, 3.0], [-5.0, 2.0]]))
    (read,) = (item for item in watch.instructions if isinstance(item, Read))
    assert len(read.sources) == 2
    assert [len(slots(source)) for source in read.sources] == [3, 3]


def test_s27_an_upload_gives_host_values_slots_and_a_launch_takes_them_along(watch: Watch):
    @ps.function
    def uploaded(n):
        return ps.TensorArray(1).write(0, n * 2).read(0), ps.cond(n * 2 > 0, lambda: n, lambda: -n)

    uploaded.map([3, 5])
    assert len(watch.nodes(Upload)) == 1
    (store,) = (item for item in watch.instructions if isinstance(item, Store))
    assert store.values.tolist() == [6, 10]
    assert len(slots(store.target)) == 2
    assert watch.launches() == []

    @ps.function
    def taken_along(x, n):
        return ps.cond(n * 2 > 0, lambda: x * n, lambda: x)

    taken_along.map(torch.ones(2), [3, 5])
    (launch,) = watch.launches()
    hosted = [operand for operand in launch.operands if isinstance(operand, Hosted)]
    assert [operand.values.tolist() for operand in hosted] == [[3, 5]]
    assert not watch.nodes(Upload)


# ---- blocks --------------------------------------------------------------------------------------


def test_s28_a_plain_block_is_one_launch(watch: Watch):
    @ps.function
    def program(x):
        return (x @ x.T).relu().sum()

    program.map(torch.ones(7, 3, 3))
    assert [launch.rows for launch in watch.launches()] == [7]


def test_s29_results_get_fresh_consecutive_slots(watch: Watch):
    @ps.function
    def program(x, n):
        return ps.cond(n > 0, lambda: (x.sin(), x.cos()), lambda: (x, x))

    program.map(torch.ones(5), [1, 0, 1, 1, 0])
    (launch,) = watch.launches()
    first, second = launch.targets
    assert isinstance(first, Span)
    assert isinstance(second, Span)
    assert not set(slots(first)) & set(slots(second))
    results = watch.machine.result_slots[0]
    assert results[[0, 2, 3]].tolist() == slots(first)


def test_s30_operands_are_spans_or_picks_and_may_repeat(watch: Watch):
    @ps.function
    def program(xs, i):
        return xs[i].sin()

    program.map([torch.ones(3, 2)] * 3, [0, 0, 0])
    assert slots(watch.launches()[0].operands[0]) == [0, 3, 6]
    assert isinstance(watch.launches()[0].operands[0], Picks)
    program.map([torch.ones(1, 2)] * 3, [0, 0, 0])
    assert isinstance(watch.launches()[0].operands[0], Span)

    @ps.function
    def twice(xs, i):
        return ps.map_fn(lambda k: xs[i].sin() * k, torch.arange(2.0))

    twice.map([torch.ones(3, 2)] * 2, [1, 2])
    operands = [operand for launch in watch.launches() for operand in launch.operands]
    found = [slots(operand) for operand in operands if isinstance(operand, Picks)]
    assert any(len(set(part)) < len(part) for part in found)


def test_s31_a_flat_block_runs_over_all_elements(watch: Watch):
    weight = torch.randn(4, 4)

    @ps.function
    def program(xs, y):
        return torch.nn.functional.linear(xs, weight) + y

    lengths = [3, 1, 4]
    xs = [torch.randn(n, 4) for n in lengths]
    ys = torch.randn(3, 4)
    results = program.map(xs, ys)
    (launch,) = watch.launches()
    assert launch.rows == sum(lengths)
    repeated = [slots(o) for o in launch.operands if isinstance(o, Picks)]
    first = repeated[0][0]
    assert [slot - first for slot in repeated[0]] == [0, 0, 0, 1, 2, 2, 2, 2]
    for x, y, result in zip(xs, ys, results):
        assert torch.allclose(result, x @ weight.T + y, atol=1e-5)


def test_s32_a_flat_block_on_no_elements_makes_no_launch(watch: Watch):
    @ps.function
    def program(xs):
        return xs.sin()

    program.map([torch.ones(2, 4), torch.ones(3, 4)])
    results = program.map([torch.ones(0, 4), torch.ones(0, 4)])
    assert watch.launches() == []
    assert [tuple(result.shape) for result in results] == [(0, 4), (0, 4)]


def test_s33_sequences_of_different_lengths_do_not_combine(monkeypatch):
    @ps.function
    def program(xs, ys):
        return xs + ys

    columns = [torch.ones(2, 4), torch.ones(3, 4)]
    program.map(columns, columns)
    original = machine_module.take_inputs

    def shorten(machine, inputs):  # tracing lets only lengths of one name be combined
        adopted = original(machine, inputs)
        table = machine.place(machine.linked.graph.inputs[1].slot)
        table.length[machine.input_slots[1][1]] -= 1
        return adopted

    monkeypatch.setattr(machine_module, "take_inputs", shorten)
    monkeypatch.setattr(BoundedPlans, "find", lambda plans, key: None)
    with pytest.raises(SizeError, match="3 elements"):
        program.map(columns, columns)


def test_s34_a_mixing_block_runs_once_for_each_combination_of_sizes(watch: Watch):
    @ps.function
    def soft(xs, ys):  # sorting has no padded form
        return xs.sort().values.softmax(0).sum() + ys.softmax(0).max()

    sizes = [(3, 2), (1, 2), (3, 1), (1, 2), (3, 2)]
    soft.map([torch.randn(a) for a, _ in sizes], [torch.randn(b) for _, b in sizes])
    launched = [tuple(operand.length for operand in launch.operands) for launch in watch.launches()]
    assert len(launched) == 3
    assert sorted(set(sizes)) == launched
    assert [launch.rows for launch in watch.launches()] == [2, 1, 2]


def test_s34a_rows_of_different_sizes_run_together_where_the_block_can_be_padded(watch: Watch):
    @ps.function
    def soft(xs, ys):
        return xs.softmax(0).sum() + ys.softmax(0).max()

    sizes = [(3, 2), (1, 2), (3, 1), (1, 2), (0, 2)]
    columns = [torch.randn(a) for a, _ in sizes], [torch.randn(b) for _, b in sizes]
    results = soft.map(*columns)
    together, alone = sorted(watch.launches(), key=lambda launch: -launch.rows)
    assert (together.rows, alone.rows) == (4, 1)  # a softmax of nothing is no matter of padding
    assert [operand.values.tolist() for operand in together.operands[2:]] == [
        [3, 1, 3, 1],
        [2, 2, 1, 2],
    ]
    for result, xs, ys in zip(results, *columns, strict=True):
        torch.testing.assert_close(result, xs.softmax(0).sum() + ys.softmax(0).max())


def test_s34b_padded_copies_serve_the_next_launch_for_the_same_rows(watch: Watch):
    @ps.function
    def attend(memory, h, steps):
        def body(t, h):
            return t + 1, torch.softmax(memory @ h, 0) @ memory

        return ps.while_loop(lambda t, h: t < steps, body, (0, h))[1]

    lengths, steps = (3, 5, 4), (2, 4, 4)  # the rows that go on are neighbours
    attend.map([torch.randn(n, 2) for n in lengths], torch.randn(3, 2), list(steps))
    pads = [item for item in watch.instructions if isinstance(item, Pad)]
    assert [pad.lengths.tolist() for pad in pads] == [[5, 4, 3]]  # then a part of the same


def test_s34c_rows_of_one_size_are_not_padded(watch: Watch):
    @ps.function
    def soft(xs):
        return xs.softmax(0).square().sum()

    soft.map([torch.randn(n) for n in (3, 5)])
    assert [item for item in watch.instructions if isinstance(item, Pad)]
    soft.map([torch.randn(4), torch.randn(4)])
    assert not [item for item in watch.instructions if isinstance(item, Pad)]


def test_s35_result_sizes_follow_from_operand_sizes(watch: Watch, monkeypatch):
    asked: list[tuple[int, ...]] = []
    original = Executable.shapes

    def shapes(executable, block, sizes):
        asked.append((len(watch.machine.launched), *sizes))
        return original(executable, block, sizes)

    monkeypatch.setattr(Executable, "shapes", shapes)

    @ps.function
    def doubled(xs):
        return torch.cat((xs, xs)).sort().values

    results = doubled.map([torch.ones(2), torch.ones(3)])
    assert [len(result) for result in results] == [4, 6]
    assert sorted(size for _, size in asked) == [2, 3]
    # asked while planning: no launch had been carried out
    assert [pending for pending, _ in asked] == [0, 1]


# ---- Switch, Merge, Pass -------------------------------------------------------------------------


@ps.function
def either(flag, x):
    return ps.cond(flag, lambda: x.sin(), lambda: x.cos())


@ps.function
def one_of(index, x):
    return ps.switch(index, [lambda: x, lambda: x.sin(), lambda: x.cos()])


def test_s36_cond_takes_the_second_arm_where_its_index_is_not_zero(watch: Watch):
    for column in ([0, 1, -3], [0.0, 1.5, -0.5], [False, True, True]):
        either.map(column, torch.zeros(3))
        (switch,) = watch.nodes(Switch)
        arm_of = {
            e.detail.node.operation.name: (e.detail.node.arm, e.rows) for e in watch.fired("block")
        }
        assert arm_of["either:cos"] == (switch.operation.arms[0], [0])
        assert arm_of["either:sin"] == (switch.operation.arms[1], [1, 2])


def test_s37_switch_takes_the_arm_that_its_index_counts(watch: Watch):
    one_of.map([2, 0, 1, 2], torch.zeros(4))
    rows = {e.detail.node.operation.name: e.rows for e in watch.fired("block")}
    assert rows == {"one_of:sin": [2], "one_of:cos": [0, 3]}


def test_s38_nan_is_no_predicate():
    with pytest.raises(PredicateError, match="NaN"):
        either.map([1.0, float("nan")], torch.zeros(2))

    @ps.function
    def compared(y, x):
        return ps.cond(y > 0, lambda: x, lambda: -x)

    assert compared(float("nan"), torch.tensor(1.0)).item() == -1


@pytest.mark.parametrize("index", [-1, 3])
def test_s39_switch_refuses_an_index_without_branch(index):
    with pytest.raises(IndexRangeError, match="out of range"):
        one_of.map([0, index], torch.zeros(2))


def test_s40_merge_passes_the_slot_of_the_arm_that_was_taken(watch: Watch):
    @ps.function
    def program(n, x, y):
        return ps.switch(n, [lambda: x, lambda: y, lambda: x.sin()])

    program.map([1, 0, 2], torch.zeros(3), torch.ones(3))
    assert len(watch.nodes(Merge)) == 1
    results = watch.machine.result_slots[0].tolist()
    x, y = (watch.machine.input_slots[k].tolist() for k in (1, 2))
    (launch,) = watch.launches()
    assert results == [y[0], x[1], slots(launch.targets[0])[0]]
    assert not watch.fired("merge")


def test_s41_pass_renames_outer_values(watch: Watch):
    @ps.function
    def program(n, x):
        return ps.cond(n > 0, lambda: x, lambda: x.sin())

    program.map([1, 1], torch.zeros(2))
    (passed,) = watch.nodes(Pass)
    assert passed.inputs[0].input is not None
    assert passed.outputs[0].arm != 0
    assert watch.machine.result_slots[0].tolist() == watch.machine.input_slots[1].tolist()
    assert watch.launches() == []


# ---- calls ---------------------------------------------------------------------------------------


@ps.function
def pair(a, b):
    """Two results that do not depend on each other."""
    return a.sin(), b.cos()


def test_s42_a_call_makes_rows_before_its_arguments_are_there(watch: Watch):
    @ps.function
    def program(x):
        a, b = pair(x.exp(), (x * 2).sum())
        return a + b

    program.map(torch.ones(3, 2))
    (created,) = watch.when("create", "pair")
    assert all(created < fired for fired in watch.block_firings("program:exp"))


def test_s43_arguments_arrive_one_group_at_a_time(watch: Watch):
    @ps.function
    def steps(n, x):
        count, _ = ps.while_loop(lambda i, k: i < n, lambda i, k: (i + 1, k + 2), (0, 0))
        return count, x.cos()

    @ps.function
    def program(n, x):
        count, y = steps(n, (x * 2).sum())
        return count, y

    program.map([2, 3], torch.ones(2, 2))
    arguments = watch.machine.linked.contexts[1].inputs
    assert len(arguments) == 1  # n is always the entry's n; the sum has a group of its own
    started = watch.when("create", "steps.loop")
    assert max(started) < min(watch.block_firings("sum"))


def test_s44_results_return_one_by_one(watch: Watch):
    @ps.function
    def program(n, x):
        count, y = counted(n, x)
        again = ps.while_loop(lambda i: i < count, lambda i: (i + 1,), (0,))[0]
        return again, y

    @ps.function
    def counted(n, x):
        count = ps.while_loop(lambda i: i < n, lambda i: (i + 2,), (0,))[0]
        return count, x.exp()

    assert [int(again) for again, _ in program.map([2, 3], torch.ones(2))] == [2, 4]
    # the caller's own loop has run before the callee's block, so its row was still alive
    assert max(watch.when("create", "program.loop")) < min(watch.block_firings("counted:exp"))
    assert min(watch.block_firings("counted:exp")) < min(watch.when("end", "counted"))


def test_s45_call_sites_share_launches(watch: Watch):
    @ps.function
    def leaf(x):
        return x.exp()

    @ps.function
    def program(x, n):
        return leaf(x) + ps.cond(n > 0, lambda: leaf(x * 2) * leaf(x), lambda: leaf(x))

    x = torch.arange(3.0)
    results = program.map(x, [1, 0, 1])
    firings = [e for e in watch.fired("block") if "exp" in e.detail.node.operation.name]
    assert sum(len(event.rows) for event in firings) == 3 + 2 * 2 + 1
    assert len(firings) <= 2
    sites = np.concatenate(
        [e.detail["site"] for e in watch.events if e.what == "create" and e.name == "leaf"]
    )
    assert len(set(sites.tolist())) == 4
    expected = [value.exp() + (value * 2).exp() * value.exp() for value in x]
    expected[1] = x[1].exp() + x[1].exp()
    assert torch.allclose(torch.stack(results), torch.stack(expected))
