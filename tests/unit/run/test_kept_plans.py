"""Calls with the same control inputs are planned once; nothing else about them is remembered."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.data import Tree, random_binary_trees
from penstock.plan.limits import limits
from penstock.plan.machine import Machine
from penstock.run import kept_plans
from penstock.run.arenas import Arena
from penstock.run.executable import compile_program

pytestmark = pytest.mark.usefixtures("interpreted_loops")


@pytest.fixture(autouse=True)
def machines(monkeypatch):
    """Weak references to the machines that were made."""
    made: list[weakref.ref[Machine]] = []
    original = Machine.__init__

    def init(self, *args, **kwargs):
        made.append(weakref.ref(self))
        original(self, *args, **kwargs)

    monkeypatch.setattr(Machine, "__init__", init)
    return made


def repeat():
    """x, n times through a sine."""

    @ps.function
    def repeat(x, n):
        return ps.while_loop(lambda k, x: k < n, lambda k, x: (k + 1, x.sin()), (0, x))[1]

    return repeat


def tree_sum(embedding):
    @ps.function
    def total(tree, i):
        return ps.cond(
            tree.is_leaf(i),
            lambda: embedding(tree.token[i]),
            lambda: torch.tanh(total(tree, tree.left(i)) + total(tree, tree.right(i))),
        )

    @ps.function
    def root(tree: Tree):
        return total(tree, tree.root)

    return root


def plans_of(function):
    """The cache of the one program that a function has so far."""
    (entry,) = function._traces._entries
    return entry.executable.plans


def test_the_same_control_inputs_are_planned_once_whatever_the_data(machines):
    f = repeat()
    for _ in range(3):
        x = torch.randn(4, 5)
        expected = [x[0].sin(), x[1].sin().sin().sin(), x[2], x[3].sin()]
        torch.testing.assert_close(f.map(x, [1, 3, 0, 1]), expected)
    assert len(machines) == 1
    assert (plans_of(f).hits, plans_of(f).misses) == (2, 1)


def test_other_control_inputs_counts_and_limits_are_planned_anew(machines):
    f, x = repeat(), torch.randn(3, 2)
    f.map(x, [1, 2, 3])
    f.map(x, [1, 3, 2])
    f.map(x[:2], [1, 2])
    with limits(live_rows=2):
        f.map(x, [1, 2, 3])
    assert len(machines) == 4
    assert plans_of(f).hits == 0


@pytest.mark.parametrize(
    ("first", "second"), [([3, 2], [2, 3]), ([1, 2], [2, 2]), ([0, 2], [2, 0])]
)
def test_sequences_of_other_lengths_are_planned_anew(machines, first, second):
    @ps.function
    def sines(xs):
        return xs.sin(), xs.cumsum(0)

    def run(lengths):
        columns = [torch.randn(length, 4) for length in lengths]
        for column, (left, right) in zip(columns, sines.map(columns)):
            torch.testing.assert_close((left, right), (column.sin(), column.cumsum(0)))

    run([2, 3])  # lengths are dynamic
    run([4, 5])
    before = len(machines)
    for lengths in (first, second, first, second):
        run(lengths)
    assert len(machines) - before == 2 - ([2, 3] in (first, second))


def test_boxed_shapes_are_part_of_what_is_planned(machines):
    @ps.function
    def products(x):
        return x @ x.T, x.sin()

    def run(*shapes):
        columns = [torch.randn(*shape) for shape in shapes]
        for x, outputs in zip(columns, products.map(columns)):
            torch.testing.assert_close(outputs, (x @ x.T, x.sin()))

    for _ in range(2):
        run((2, 3), (4, 3), (2, 3))
        run((4, 3), (2, 3), (2, 3))
        run((2, 3), (2, 3), (4, 3))
    known = len(machines)
    run((2, 3), (4, 3), (2, 3))
    assert len(machines) == known


@pytest.mark.parametrize("out", ["list", "stack", "pad"])
def test_outputs_come_in_all_forms(out, machines):
    @ps.function
    def parts(x, n):
        array = ps.TensorArray.unstack(x)
        return {"last": array.read(n), "n": n * 2, "all": x.exp(), "array": array.stack() + 1}

    x, n = torch.randn(3, 4, 2), [1, 0, 3]
    first = parts.map(x, n, out=out)  # traced
    made = len(machines)
    second = parts.map(x + 1, n, out=out)
    third = parts.map(x, n, out=out)
    assert len(machines) == made
    torch.testing.assert_close(third, first)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(second, first)


def test_outputs_belong_to_the_caller():
    @ps.function
    def parts(x, n):
        return x, n + 1, x * 2

    x = torch.ones(2, 2)
    for _ in range(3):
        for plain, number, doubled in parts.map(x, [1, 2]):
            assert plain.tolist() == [1, 1]
            assert int(number) in (2, 3)
            assert doubled.tolist() == [2, 2]
            for tensor in (plain, number, doubled):
                tensor.zero_()
    assert x.tolist() == [[1, 1], [1, 1]]


def test_control_tensors_may_be_changed_after_a_call(machines):
    f, x, n = repeat(), torch.ones(2, 1), torch.tensor([1, 2])
    f.map(x, n)
    n += 1
    changed = f.map(x, n)
    n -= 1
    again = f.map(x, n)
    torch.testing.assert_close(changed, [x[0].sin().sin(), x[0].sin().sin().sin()])
    torch.testing.assert_close(again, [x[0].sin(), x[0].sin().sin()])
    assert len(machines) == 2


def test_a_shared_number_that_steers_is_part_of_what_is_planned(machines):
    f, x = repeat(), torch.ones(2, 1)
    for n in (2, 3, 2, 3):
        expected = x[0]
        for _ in range(n):
            expected = expected.sin()
        torch.testing.assert_close(f.map(x, n=n), [expected, expected])
    assert len(machines) == 2


def test_random_programs_draw_fresh_numbers_and_keep_no_plan(machines):
    @ps.function
    def noisy(x, n):
        def step(k, x):
            return (k + 1, x + torch.rand_like(x))

        return ps.while_loop(lambda k, x: k < n, step, (0, x))[1]

    x = torch.zeros(3, 4)
    torch.manual_seed(0)
    first, second = (noisy.map(x, [1, 2, 3], out="stack") for _ in range(2))
    torch.manual_seed(0)
    again = noisy.map(x, [1, 2, 3], out="stack")
    assert not torch.equal(first, second)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert len(plans_of(noisy)) == 0
    assert len(machines) == 3


def test_programs_that_read_computed_values_keep_no_plan(machines):
    @ps.function
    def until(x):
        return ps.while_loop(lambda x: x.sum() < 10, lambda x: (x * 2,), (x,))[0]

    for _ in range(2):
        until.map(torch.ones(2, 3))
    assert until.map(torch.full((2, 3), 20.0), out="stack").tolist() == [[20.0] * 3] * 2
    assert len(plans_of(until)) == 0
    assert len(machines) == 3


def test_a_schedule_is_made_anew(machines):
    f, x = repeat(), torch.ones(2, 1)
    f.map(x, [1, 2])
    first, second = (f.schedule(x, [1, 2]) for _ in range(2))
    assert first.digest() == second.digest()
    assert len(machines) == 3


def test_a_profile_of_a_known_plan_shows_the_same_launches():
    embedding = torch.nn.Embedding(2000, 3)
    f, trees = tree_sum(embedding), random_binary_trees(4, seed=0)
    with ps.profile() as first:
        f.map(trees)
    with ps.profile() as second:
        f.map(trees)
        f.map(trees)
    facts = [
        [(e.block, e.rows, e.shapes, e.sources, e.device, e.gathered_bytes) for e in run.launches]
        for run in (first, second)
    ]
    assert facts[1] == facts[0] * 2
    assert [call.firings for call in second.calls] == [first.calls[0].firings] * 2
    assert (first.plan_hits, second.plan_hits) == (0, 2)
    assert "2 plan hits" in second.summary()
    assert all(call.planning_seconds > 0 for call in second.calls)


def test_an_error_in_a_launch_names_the_same_instance_and_line():
    embedding = torch.nn.Embedding(4, 3)

    @ps.function
    def look_up(token, n):
        def step(k, h):
            return (k + 1, h + embedding(token))

        return ps.while_loop(lambda k, h: k < n, step, (0, torch.zeros(3)))[1]

    good, bad = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 9, 3])
    notes = []
    for tokens in (bad, good, bad):
        if tokens is good:
            look_up.map(tokens, [1, 2, 3, 4])
            continue
        with pytest.raises(IndexError) as caught:
            look_up.map(tokens, [1, 2, 3, 4])
        notes.append(caught.value.__notes__)
    assert notes[0] == notes[1]
    assert any("for instance 2" in note for note in notes[0])
    assert plans_of(look_up).hits == 1
    torch.testing.assert_close(look_up.map(good, [1, 2, 3, 4])[1], 2 * embedding.weight[1])


def test_an_instance_that_fails_is_found_among_known_plans():
    embedding = torch.nn.Embedding(4, 3)

    @ps.function
    def look_up(token, n):
        def step(k, h):
            return (k + 1, h + embedding(token))

        return ps.while_loop(lambda k, h: k < n, step, (0, torch.zeros(3)))[1]

    tokens = torch.tensor([0, 1, 9, 3])
    for _ in range(2):
        results = ps.map(look_up, tokens, [1, 2, 3, 4], on_error="return")
        assert [isinstance(result, IndexError) for result in results] == [False, False, True, False]


def test_a_fault_of_the_planner_comes_at_every_call(machines):
    @ps.function
    def pick(xs, i):
        return ps.TensorArray.unstack(xs).read(i)

    for _ in range(2):
        with pytest.raises(ps.errors.PenstockError, match=r"instance\s+1"):
            pick.map(torch.ones(3, 4, 2), [0, 7, 1])
    assert len(plans_of(pick)) == 0


def test_plans_are_bounded_by_number_and_by_bytes(monkeypatch):
    monkeypatch.setattr(kept_plans, "MOST_PLANS", 3)
    few, x = repeat(), torch.ones(2, 1)
    for n in range(6):
        few.map(x, [n, 1])
    assert len(plans_of(few)) == 3
    monkeypatch.setattr(kept_plans, "MOST_BYTES", plans_of(few).bytes)
    tight = repeat()
    for n in range(3, 30):
        tight.map(x, [n, 1])
        assert plans_of(tight).bytes <= plans_of(few).bytes
    assert len(plans_of(tight)) <= 3
    tight.map(x, [1000, 1])  # larger than all the room there is: the others stay
    assert len(plans_of(tight)) >= 1


def test_a_plan_that_is_too_large_is_not_collected(monkeypatch):
    monkeypatch.setattr(kept_plans, "MOST_BYTES", 100_000)
    most = []
    add = kept_plans.Keeping.add

    def watch(keeping, window):
        add(keeping, window)
        most.append(len(keeping._windows))

    monkeypatch.setattr(kept_plans.Keeping, "add", watch)
    f = repeat()
    for _ in range(2):
        f.map(torch.ones(1, 1), [5000])
    assert len(plans_of(f)) == 0
    assert max(most) <= 1


def test_plans_that_never_come_again_are_not_kept(monkeypatch):
    monkeypatch.setattr(kept_plans, "PATIENCE", 3)
    f, x = repeat(), torch.ones(1, 1)
    for n in range(1, 9):
        f.map(x, [n])
    assert len(plans_of(f)) == 3
    f.map(x, [2])  # one comes again: then others may
    assert plans_of(f).hits == 1
    for n in range(9, 15):
        f.map(x, [n])
    assert len(plans_of(f)) == 6


def test_a_plan_that_comes_again_is_kept_though_it_was_let_go(monkeypatch, machines):
    monkeypatch.setattr(kept_plans, "PATIENCE", 3)
    f, x = repeat(), torch.ones(1, 1)
    for _ in range(2):
        for n in range(1, 9):
            f.map(x, [n])
    assert len(plans_of(f)) == 8
    machines.clear()
    for n in range(1, 9):
        f.map(x, [n])
    assert not machines, "the third round is planned no more"


def test_digests_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(kept_plans, "PATIENCE", 2)
    monkeypatch.setattr(kept_plans, "MOST_SEEN", 3)
    f, x = repeat(), torch.ones(1, 1)
    for n in (1, 2, 3, 4, 5, 6, 3):  # when 3 comes again, 4 to 6 have come since
        f.map(x, [n])
    assert len(plans_of(f)) == 2
    f.map(x, [6])
    assert len(plans_of(f)) == 3


def test_gradients_of_a_plan_that_is_not_kept(monkeypatch):
    monkeypatch.setattr(kept_plans, "PATIENCE", 0)
    f = repeat()
    for n in (3, 5, 3, 5):
        x = torch.tensor([[0.5], [0.25]], requires_grad=True)
        y = torch.stack(f.map(x, [n, 2]))
        y.sum().backward()
        plain = x.detach().clone().requires_grad_()
        rows = []
        for row, times in zip(plain, (n, 2), strict=True):
            for _ in range(times):
                row = row.sin()
            rows.append(row)
        expected = torch.stack(rows)
        (gradient,) = torch.autograd.grad(expected.sum(), plain)
        assert torch.allclose(y, expected)
        assert torch.allclose(x.grad, gradient)


def test_nothing_of_a_call_is_kept_but_its_plan(machines, monkeypatch):
    arenas: list[weakref.ref[Arena]] = []
    chunks: list[weakref.ref[torch.Tensor]] = []
    install = Arena.install

    def watch(arena, start, values):
        arenas.append(weakref.ref(arena))
        chunks.append(weakref.ref(values))
        install(arena, start, values)

    monkeypatch.setattr(Arena, "install", watch)
    model = torch.nn.Linear(2, 2)

    @ps.function
    def chain(x, n):
        def step(k, x):
            return (k + 1, torch.tanh(model(x)))

        return ps.while_loop(lambda k, x: k < n, step, (0, x))[1]

    def run():
        x = torch.randn(3, 2, requires_grad=True)
        result = chain.map(x, [1, 2, 3], out="stack")
        result.square().sum().backward()
        with torch.no_grad():
            chain.map(x, [1, 2, 3])
        return [weakref.ref(x), weakref.ref(x.grad), weakref.ref(result)]

    for _ in range(3):
        tensors = run()
        gc.collect()
        assert [ref() for ref in (*tensors, *arenas, *chunks, *machines)].count(None) == len(
            [*tensors, *arenas, *chunks, *machines]
        )
    assert len(machines) == 1
    executable = weakref.ref(chain._traces._entries[0].executable)
    chain._traces._entries.clear()
    gc.collect()
    assert executable() is None


def test_a_known_plan_takes_no_more_memory_than_it_uses(monkeypatch):
    grown = []
    grow = Arena.grow
    monkeypatch.setattr(
        Arena, "grow", lambda arena, *rest: grown.append(rest) or grow(arena, *rest)
    )
    f, x = repeat(), torch.ones(2, 1)
    f.map(x, [1, 2])
    f.map(x, [1, 2])
    assert [count for _, count in grown] == [1024, 3]


def test_several_threads_share_plans(machines):
    embedding = torch.nn.Embedding(2000, 3)
    f = tree_sum(embedding)
    batches = [random_binary_trees(3, seed=seed) for seed in range(4)]
    with torch.no_grad():
        expected = [f.map(trees, out="stack") for trees in batches]
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        ready.wait()
        for turn in range(8):
            k = (number + turn) % 4
            torch.testing.assert_close(f.map(batches[k], out="stack").detach(), expected[k])
            (grad,) = torch.autograd.grad(f.map(batches[k], out="stack").sum(), embedding.weight)
            assert grad.abs().sum() > 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(machines) == 4
    assert plans_of(f).hits == 2 * 32


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_arrays_of_a_kept_plan_are_never_written_to():
    f, x = repeat(), torch.randn(3, 2, requires_grad=True)
    expected, _ = (torch.autograd.grad(f.map(x, [1, 2, 3], out="stack").sum(), x) for _ in range(2))
    for plan, _ in plans_of(f)._entries.values():
        for window in plan.windows:
            for step in window.steps:
                _freeze((step.launch, step.instances))
        _freeze((plan.outcome.inputs, plan.outcome.results))
        _freeze([list(way.present.values()) for way in plan.ways.values()])
    found = torch.autograd.grad(f.map(x, [1, 2, 3], out="stack").sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _freeze(item) -> None:
    if isinstance(item, np.ndarray):
        item.setflags(write=False)
    elif isinstance(item, tuple | list):
        for part in item:
            _freeze(part)


def test_programs_have_plans_of_their_own():
    f = repeat()
    program = f.program(torch.ones(2), 3)
    first, second = compile_program(program), compile_program(program)
    for executable in (first, second, first):
        executable.run([[torch.ones(2)], [torch.tensor(3)]], [], 1)
    assert (first.plans.hits, second.plans.hits) == (1, 0)
