"""docs/semantics.md: elements, sizes, arrays, random keys (S58 to S74)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.errors import IndexRangeError, SizeError
from penstock.ir.graph import Block, Compute, Key, Primitive
from penstock.plan.arrays import ArrayTable
from penstock.plan.limits import limits
from penstock.plan.random_keys import mix
from penstock.plan.schedule import Copy
from tests.semantics.page.watch import Watch, slots


@ps.function
def item(xs, i):
    return xs[i]


@ps.function
def filled(x, n):
    """x, 2x, 4x, ... in an array of n elements, stacked."""

    def body(i, x, array):
        return i + 1, x * 2, array.write(i, x)

    array = ps.TensorArray(n)
    return ps.while_loop(lambda i, x, a: i < n, body, (0, x, array))[2].stack()


# ---- elements and sizes --------------------------------------------------------------------------


def test_s58_an_element_is_a_slot_of_the_sequence(watch: Watch):
    item.map([torch.ones(2, 3), torch.ones(4, 3)], [1, 2])
    assert watch.launches() == []
    assert watch.machine.result_slots[0].tolist() == [1, 2 + 2]


@pytest.mark.parametrize("index", [2, -3])
def test_s59_negative_indices_count_from_the_end(index):
    xs = [torch.arange(2.0), torch.arange(5.0)]
    assert [float(x) for x in item.map(xs, [-1, -5])] == [1, 0]
    with pytest.raises(IndexRangeError, match="out of range"):
        item.map(xs, [index, 0])


def test_s60_tables_are_read_on_the_host(watch: Watch):
    @ps.function
    def follow(table, x, i):
        return ps.cond(table[i] > 0, lambda: x.sin(), lambda: x)

    follow.map([torch.tensor([0, 1]), torch.tensor([0, 0, 0])], torch.ones(2), [-1, 1])
    steps = [step.name for node in watch.nodes(Compute) for step in node.operation.steps]
    assert "read_table" in steps
    assert [launch.rows for launch in watch.launches()] == [1]
    with pytest.raises(IndexRangeError, match="out of range"):
        follow.map([torch.tensor([0, 1])] * 2, torch.ones(2), [0, 2])


def test_s61_sizes_are_host_integers(watch: Watch):
    @ps.function
    def sizes(xs, n):
        grid = xs[:, None] * xs[None, :]
        array = ps.TensorArray(n, like=xs[0])
        return xs.shape[0] * 1, grid.sin().shape[1] * 1, array.size(), grid.sum()

    found = sizes.map([torch.ones(2), torch.ones(3)], [4, 0])
    assert [[int(leaf) for leaf in row[:3]] for row in found] == [[2, 2, 4], [3, 3, 0]]
    names = [node.operation.name for node in watch.nodes(Primitive)]
    assert {"Size", "ArraySize"} <= set(names)
    for node in watch.nodes(Primitive):
        if node.operation.name in ("Size", "ArraySize"):
            assert node.outputs[0].home == "host"


# ---- arrays --------------------------------------------------------------------------------------


def test_s62_a_new_array_has_nothing_written():
    @ps.function
    def program(n, x):
        return ps.TensorArray(n, like=x).size()

    assert [int(size) for size in program.map([0, 3], torch.ones(2))] == [0, 3]
    with pytest.raises(SizeError, match="negative"):
        program.map([0, -1], torch.ones(2))


def test_s63_unstack_shares_the_slots_of_the_sequence(watch: Watch):
    @ps.function
    def program(xs):
        return ps.TensorArray.unstack(xs).read(1)

    program.map([torch.ones(2, 3), torch.ones(3, 3)])
    assert watch.machine.result_slots[0].tolist() == [1, 3]
    assert watch.launches() == []


def test_s64_read_gives_what_was_written(watch: Watch):
    @ps.function
    def program(x, y, i):
        return ps.TensorArray(3).write(0, x).write(2, y).read(i)

    program.map(torch.ones(2), torch.ones(2), [0, 2])
    x, y = (watch.machine.input_slots[k].tolist() for k in (0, 1))
    assert watch.machine.result_slots[0].tolist() == [x[0], y[1]]
    for index, text in ((1, "never written"), (3, "out of range"), (-1, "out of range")):
        with pytest.raises(IndexRangeError, match=text):
            program.map(torch.ones(2), torch.ones(2), [0, index])


def test_s65_write_leaves_older_versions_alone():
    @ps.function
    def program(x, y):
        old = ps.TensorArray(2).write(0, x).write(1, x)
        new = old.write(1, y)
        return old.stack(), new.stack()

    old, new = program(torch.tensor(1.0), torch.tensor(2.0))
    assert (old.tolist(), new.tolist()) == ([1, 1], [1, 2])


def test_s66_a_version_that_nobody_else_uses_is_written_in_place(watch: Watch, monkeypatch):
    reused: list[bool] = []
    original = ArrayTable.copy

    def copy(table, numbers, length, *, may_steal):
        written = original(table, numbers, length, may_steal=may_steal)
        reused.append(bool((written == numbers).all()))
        return written

    monkeypatch.setattr(ArrayTable, "copy", copy)
    filled(torch.tensor(1.0), 50)
    in_place = list(reused)
    assert sum(in_place) >= 45
    reused.clear()

    @ps.function
    def branching(x, y):
        old = ps.TensorArray(2).write(0, x).write(1, x)
        return old.write(0, y).stack(), old.write(1, y).stack()

    found = branching(torch.tensor(1.0), torch.tensor(2.0))
    assert [leaf.tolist() for leaf in found] == [[2, 1], [1, 2]]
    assert not all(reused)
    # slot numbers are copied, not values; the result has a fixed shape, hence the reshape
    assert watch.launches() == watch.launches("reshape")


def test_s67_only_a_dynamic_array_grows():
    @ps.function
    def fixed(x, i):
        return ps.TensorArray(2).write(i, x).size()

    @ps.function
    def growing(x, i):
        array = ps.TensorArray(2, dynamic_size=True).write(i, x)
        return array.size(), array.read(i)

    assert [int(size) for size, _ in growing.map(torch.ones(3), [0, 1, 7])] == [2, 2, 8]
    with pytest.raises(IndexRangeError, match="out of range"):
        fixed.map(torch.ones(2), [0, 2])

    @ps.function
    def gap(x):
        return ps.TensorArray(0, dynamic_size=True).write(2, x).read(1)

    with pytest.raises(IndexRangeError, match="never written"):
        gap(torch.tensor(1.0))


def test_s68_stack_copies_only_what_is_not_one_run(watch: Watch):
    @ps.function
    def back(xs):
        return ps.TensorArray.unstack(xs).stack()

    back.map([torch.ones(2, 3), torch.ones(4, 3)])
    assert not [item for item in watch.instructions if isinstance(item, Copy)]

    @ps.function
    def swapped(x, y):
        return ps.TensorArray(2).write(0, y).write(1, x).stack()

    result = swapped.map(torch.zeros(2), torch.ones(2))
    assert [row.tolist() for row in result] == [[1, 0], [1, 0]]
    (copy,) = (item for item in watch.instructions if isinstance(item, Copy))
    assert len(slots(copy.source)) == copy.target.count == 4

    @ps.function
    def incomplete(x):
        return ps.TensorArray(2).write(0, x).stack()

    with pytest.raises(IndexRangeError, match="never written"):
        incomplete(torch.tensor(1.0))


# ---- random keys ---------------------------------------------------------------------------------


@ps.function
def noisy(x, n):
    return ps.cond(n > 0, lambda: noisy(x, n - 1) + torch.rand(2), lambda: x)


@ps.function
def walk(x, n):
    def body(i, x):
        return i + 1, ps.cond(i % 2 == 0, lambda: x + torch.rand(2), lambda: x + torch.randn(2))

    return ps.while_loop(lambda i, x: i < n, body, (0, x))[1]


def keys_of(watch: Watch, name: str) -> list[int]:
    """The keys of all rows of a context, in the order in which the rows were made."""
    return [int(key) for k in watch.when("create", name) for key in watch.events[k].detail["key"]]


def below(key: int, *salts: int) -> int:
    for salt in salts:
        key = int(mix(np.array([key], np.uint64), salt)[0])
    return key


def test_s69_a_call_has_one_seed(watch: Watch):
    torch.manual_seed(0)
    noisy.map(torch.ones(3, 2), [1, 2, 3])
    after = torch.rand(())
    torch.manual_seed(0)
    seed = int(torch.randint(2**63 - 1, ()))
    assert watch.machine.seed == seed
    assert torch.rand(()) == after

    @ps.function
    def plain(x):
        return x.sin()

    for run in (
        lambda: plain(torch.ones(2)),
        lambda: noisy(torch.ones(2), 0),
        lambda: noisy.schedule(torch.ones(2, 2), [1, 2]),
    ):
        torch.manual_seed(0)
        run()
        assert int(torch.randint(2**63 - 1, ())) == seed


def test_s70_the_key_of_an_entry_row(watch: Watch):
    walk.map(torch.ones(3, 2), [1, 2, 3])
    assert keys_of(watch, "walk") == [below(watch.machine.seed, k) for k in range(3)]
    walk(torch.ones(2), 1)
    assert keys_of(watch, "walk") == [below(watch.machine.seed, 0)]

    @ps.function
    def spread(x):
        return torch.rand_like(x).softmax(0)

    torch.manual_seed(0)
    spread.map([torch.ones(2, 2), torch.ones(2), torch.ones(2, 2), torch.ones(2)])
    torch.manual_seed(0)
    seed = int(torch.randint(2**63 - 1, ()))
    assert keys_of(watch, "spread") == [below(seed, k) for k in (1, 3)]  # the group that ran last


def test_s71_the_key_of_a_callee(watch: Watch):
    noisy(torch.ones(2), 2)
    (main,) = keys_of(watch, "noisy.main")
    outer, middle, inner = keys_of(watch, "noisy")
    recursive = next(
        n.operation for n in watch.graph.contexts[1].nodes if type(n.operation).__name__ == "Call"
    )
    assert outer == main
    assert middle == below(outer, *recursive.path)
    assert inner == below(middle, *recursive.path)
    assert len(recursive.path) == 3  # the branch's site, its arm, the call's site


def test_s72_the_key_of_an_iteration_or_element(watch: Watch):
    walk(torch.ones(2), 3)
    (entry,) = keys_of(watch, "walk")
    path = watch.context("loop").key_path
    assert keys_of(watch, "walk.loop") == [below(entry, *path, i) for i in range(4)]

    @ps.function
    def each(xs):
        return ps.map_fn(lambda x: x + torch.rand(()), xs)

    each(torch.zeros(3))
    (entry,) = keys_of(watch, "each")
    path = watch.context("each").key_path
    assert keys_of(watch, "each.each") == [below(entry, *path, i) for i in range(3)]


def test_s73_the_key_of_a_random_operation(watch: Watch):
    walk(torch.ones(2), 2)
    uniform, normal = watch.nodes(Key)
    assert {len(node.operation.path) for node in (uniform, normal)} == {4}
    rows = keys_of(watch, "walk.loop")
    taken = {}
    for launch in watch.launches():
        name = watch.run.schedule.blocks[launch.block]
        taken[name] = next(o.values.tolist() for o in launch.operands if hasattr(o, "values"))
    by_block = {n.operation.name: n.arm for n in watch.nodes(Block)}
    for name, values in taken.items():
        node = next(n for n in watch.nodes(Key) if n.arm == by_block[name])
        row = rows[0] if "uniform" in name else rows[1]
        assert node.operation.path == (-1, 0, node.arm - 3, 0)
        expected = np.array([below(row, *node.operation.path)], np.uint64).view(np.int64)
        assert values == expected.tolist()

    @ps.function
    def decided(x, flag):
        torch.rand(1)
        return ps.cond(flag, lambda: x, lambda: x + torch.rand(2))

    decided(torch.ones(2), ps.static(False))
    (key,) = watch.nodes(Key)
    assert key.operation.path == (1, 0, 0)


def test_s74_draws_do_not_depend_on_batching():
    def run(count, **bounds):
        torch.manual_seed(5)
        counts = [3, 1, 4, 2, 5][:count]
        with limits(**bounds):
            return torch.stack(walk.map(torch.zeros(count, 2), counts))

    everything = run(5)
    assert torch.equal(run(3), everything[:3])
    assert torch.equal(run(5, live_rows=2, admitted_rows=1), everything)
    with ps.set_eager(True):
        torch.testing.assert_close(run(5), everything)
    assert len(torch.unique(everything)) == everything.numel()
