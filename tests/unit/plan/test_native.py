"""The native machine: same schedules as the plain one, and the plain one where it cannot go on."""

from __future__ import annotations

import operator
import sys

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.data import random_binary_trees
from penstock.errors import RecursionLimitError
from penstock.plan import buckets, planners
from penstock.plan import slots as slots_module
from penstock.plan.limits import limits
from penstock.plan.machine import Machine
from penstock.plan.native import kept_code, kernel_state
from penstock.plan.native import machine as native_machine
from penstock.plan.native import opcodes as op
from penstock.plan.native.assemble import assemble
from penstock.plan.native.program import NotNative
from penstock.plan.planners import planning
from penstock.plan.schedule import Chunk
from penstock.run.engine import Run
from penstock.run.fused.setting import Fusion

#: Loops over scalars are part of what is planned here.
pytestmark = pytest.mark.usefixtures("interpreted_loops")

pytest.importorskip("numba")


def tree_sum():
    @ps.function
    def total(tree, i):
        return ps.cond(
            tree.is_leaf(i),
            lambda: tree.token[i].to(torch.float32).reshape(1) * 2,
            lambda: total(tree, tree.left(i)) + total(tree, tree.right(i)),
        )

    @ps.function
    def root(tree):
        return total(tree, tree.root)

    return root


@ps.function
def powers(x, n):
    """x * 2 ** n * (0 + 1 + ... + n - 1), by a loop whose counter meets data."""
    i, total = torch.tensor(0), x * 0
    while i < n:
        x = x * 2
        total = total + x * i
        i = i + 1
    return total


@ps.function
def word_sums(words, n):
    """Vectors of whole sentences at once, added up one by one."""
    vectors = torch.tanh(words) * 3
    i, total = torch.tensor(0), torch.zeros(2)
    while i < n:
        total = total + vectors[i]
        i = i + 1
    return total, vectors


@ps.function
def two_loops(x, n, m):
    """Rows leave the first loop at different times, and enter the second together."""
    x = ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, torch.sin(x)), (0, x))[1]
    return ps.while_loop(lambda i, x: i < m, lambda i, x: (i + 1, torch.cos(x)), (0, x))[1]


@ps.function
def scans(xs):
    """Outputs of one loop are the inputs of the next; arrays are stacked, out of order at last."""
    last, ys = ps.scan(lambda c, x: (torch.tanh(c + x), c * 2), torch.zeros(2), xs)
    _, zs = ps.scan(lambda c, y: (torch.sin(c + y), c * 3), last, ys, reverse=True)
    return last, zs * 2


@ps.function
def versions(xs, n):
    """An array that is read while it is written, and grows; its older versions stay."""
    first = ps.TensorArray.unstack(xs)
    grown = ps.TensorArray(0, dynamic_size=True).write(0, xs[0])
    i = torch.tensor(1)
    while i < n:
        grown = grown.write(i, grown.read(i - 1) + first.read(i - 1))
        i = i + 1
    other = grown.write(0, xs[0] * 5)
    return grown.stack(), other.read(0) + grown.read(0), first.write(0, xs[0] * 2).stack()


@ps.function
def attending(source, target):
    """Softmax over sources of different lengths at every step, results of which are stacked; a
    part of the target, and a sum that is told a size.
    """

    def step(h, y):
        h = torch.softmax(source @ torch.tanh(h + y), 0) @ source
        return h, h * 2

    last, told = ps.scan(step, torch.zeros(2), target[:-1] * 3)
    return last, told, torch.cumsum(told, 0).sum(0) / target.shape[0]


@pytest.fixture
def machines(monkeypatch):
    """The machines of all calls, in order."""
    made = []
    carry_out = Run.carry_out

    def watched(run, columns):
        try:
            carry_out(run, columns)
        finally:
            made.append(run.machine)

    monkeypatch.setattr(Run, "carry_out", watched)
    return made


def columns_of(name):
    torch.manual_seed(0)
    if name == "trees":
        return tree_sum(), [random_binary_trees(40, seed=1)]
    if name == "loop":
        return powers, [torch.randn(30), torch.randint(0, 40, (30,))]
    if name == "two loops":
        return two_loops, [torch.randn(30, 2), torch.randint(0, 9, (30,)), [3] * 30]
    if name == "scans":
        return scans, [[torch.randn(n, 2) for n in (3, 0, 9, 1, 30)]]
    if name == "attention":
        pairs = [(3, 4), (9, 2), (1, 7), (9, 9), (30, 1), (2, 3)]
        sources, targets = ([torch.randn(n, 2) for n in each] for each in zip(*pairs, strict=True))
        return attending, [sources, targets]
    lengths = [3, 1, 5, 2]
    if name == "arrays":
        return versions, [[torch.randn(n, 2) for n in lengths], lengths]
    return word_sums, [[torch.randn(n, 2) for n in lengths], lengths]


PROGRAMS = ["trees", "loop", "two loops", "flat blocks", "scans", "arrays", "attention"]


@pytest.mark.parametrize("bounds", [{}, {"live_rows": 60}, {"loop_rows": 20, "admitted_rows": 7}])
@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_are_equal_under_every_bound(machines, name, bounds):
    function, columns = columns_of(name)
    with limits(**bounds):
        with planning("never"):
            plain = function.schedule(*columns)
        with planning("always"):
            native = function.schedule(*columns)
    assert native.digest() == plain.digest()
    assert native.firings == plain.firings
    assert isinstance(machines[0], Machine)
    assert isinstance(machines[1], native_machine.NativeMachine)
    assert machines[1].plain is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_window_at_a_time_makes_the_same_schedule(monkeypatch, name):
    function, columns = columns_of(name)
    with planning("always"):
        whole = function.schedule(*columns).digest()
        monkeypatch.setattr(kernel_state, "WINDOW", 2)
        assert function.schedule(*columns).digest() == whole


@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_without_any_room_grow_in_the_middle_of_events(monkeypatch, name):
    function, columns = columns_of(name)
    with planning("always"):
        roomy = function.schedule(*columns).digest()
        monkeypatch.setattr(kernel_state, "_free", [])
        monkeypatch.setattr(kernel_state.KernelState, "_start", start_without_room)
        assert function.schedule(*columns).digest() == roomy


def start_without_room(state, start=kernel_state.KernelState._start):
    state.space.frames = np.empty(0, np.int64)
    start(state)
    state.space.queue = state.space.queue[: state.scalars[op.QUEUE_TOP]].copy()
    state.space.heap = np.empty(op.ROWS_REGISTER, np.int64)
    for name in ("moves", "held", "arrived", "heads", "data", "chunks"):
        setattr(state, name, np.empty(0, np.int64))


def test_what_the_kernel_has_not_replaced_is_given_back_as_it_was(monkeypatch):
    """It counts no references to arrays: theirs is the memory that it works on."""
    given = []
    advance = kernel_state.KernelState.advance

    def watched(state):
        before = state.space.frames, state.moves, state.results, state.scalars
        found = advance(state)
        after = state.space.frames, state.moves, state.results, state.scalars
        given.extend(map(operator.is_, before, after))
        return found

    monkeypatch.setattr(kernel_state.KernelState, "advance", watched)
    function, columns = columns_of("trees")
    with planning("always"):
        function.schedule(*columns)
    assert given
    assert all(given)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_do_not_depend_on_who_plans(name):
    found = []
    for mode in ("never", "always"):
        function, columns = columns_of(name)
        with planning(mode):
            found.append(function.map(*columns))
    flat = [
        torch.cat([leaf.reshape(-1) for leaf in torch.utils._pytree.tree_leaves(outputs)])
        for outputs in found
    ]
    torch.testing.assert_close(flat[0], flat[1], rtol=0, atol=0)


def test_groups_of_rows_that_are_launched_apart_arrive_alike(monkeypatch):
    monkeypatch.setattr(buckets, "COST_IN_LOOP", 1)
    function, columns = columns_of("attention")
    schedules = []
    for mode in ("never", "always"):
        with planning(mode):
            schedules.append(function.schedule(*columns))
    assert schedules[0].count("add_tanh_matmul") > 8, "several launches in some of eight steps"
    assert schedules[0].digest() == schedules[1].digest()
    assert schedules[0].firings == schedules[1].firings


def test_a_fault_among_groups_is_the_plain_machines_fault(monkeypatch, machines):
    """What one group of rows makes is written outside of an array, before the next is launched."""
    monkeypatch.setattr(buckets, "LAUNCH_COST", 1)

    @ps.function
    def write(x, i):
        return ps.TensorArray(2).write(i, torch.softmax(x, 0) @ x).read(i) * 2

    texts = []
    for mode in ("never", "always"):
        with planning(mode), pytest.raises(IndexError) as caught:
            write.map([torch.ones(n) for n in (2, 3, 20, 21, 50)], [0, 2, 1, 1, 0])
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert machines[1].plain is not None


def test_slots_are_reused_alike():
    @ps.function
    def decay(x, n):
        i = torch.tensor(0)
        while i < n:
            x = torch.tanh(x)
            i = i + 1
        return x

    columns = torch.randn(300, 2), torch.arange(300) % 37
    digests = []
    for mode in ("never", "always"):
        with planning(mode), torch.no_grad():
            schedule = decay.schedule(*columns)
        digests.append(schedule.digest())
        slots = max(
            t.start + t.count if hasattr(t, "start") else t.slots.max() + 1
            for launch in schedule.launches
            for t in launch.targets
        )
        assert slots < 300 * 18  # all values ever made would need as many
    assert digests[0] == digests[1]


def test_a_fault_is_the_plain_machines_fault(machines):
    @ps.function
    def pick(table, i):
        return ps.cond(table[i] > 0, lambda: torch.ones(1), lambda: torch.zeros(1))

    texts = []
    for mode in ("never", "always"):
        with planning(mode), pytest.raises(IndexError) as caught:
            pick.map([torch.tensor([1, 2]), torch.tensor([3])], [1, 1])
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert machines[1].plain is not None


@pytest.mark.parametrize("index", [-1, 2, 1])
def test_faults_of_arrays_are_the_plain_machines_faults(machines, index):
    """Outside of the array on either side, and where nothing was written."""

    @ps.function
    def read(x, i):
        return ps.TensorArray(2).write(0, x).read(i) * 2

    texts = []
    for mode in ("never", "always"):
        with planning(mode), pytest.raises(IndexError) as caught:
            read.map([torch.ones(1), torch.ones(1)], [0, index])
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert machines[1].plain is not None


def test_runaway_recursion_is_found_by_the_plain_machine():
    @ps.function(max_depth=50)
    def down(n):
        return ps.cond(n > 10_000, lambda: torch.zeros(1), lambda: down(n + 1) + 1)

    with planning("always"), pytest.raises(RecursionLimitError):
        down.map([1, 2])


def test_the_plain_machine_goes_on_where_the_native_one_stopped(monkeypatch, machines):
    def walk(x, steps):
        i = torch.tensor(0)
        while i < len(steps):
            x = x * 2
            i = i + 1 + 0 * (100 // steps[i])
        return x

    monkeypatch.setattr(kernel_state, "WINDOW", 1)
    columns = torch.ones(2, 1), [torch.tensor([100] * 9), torch.tensor([100] * 8 + [-1])]
    texts = []
    for mode in ("never", "always"):
        with planning(mode), limits(loop_rows=2, admitted_rows=2):
            outputs = ps.function(walk).map(*columns)
        texts.append([output.tolist() for output in outputs])
    assert texts[0] == texts[1]
    assert machines[1].plain is not None


def test_what_cannot_be_assembled_says_why():
    @ps.function
    def halve(x):
        while x.sum() > 1:
            x = x / 2
        return x

    halve(torch.ones(2))
    executable = halve._runs.executable(halve._entry((torch.ones(2),), {}))
    with pytest.raises(NotNative, match="kind read"):
        assemble(executable.linked)


@pytest.fixture
def choice(monkeypatch):
    """Who plans in a process that has just begun; loading is noted, not done."""
    made = planners._Choice()
    made.seconds_at_load = []
    monkeypatch.setattr(made, "_load", lambda: made.seconds_at_load.append(made.seconds))
    return made


def test_native_code_is_loaded_when_that_is_worth_it(choice, monkeypatch):
    monkeypatch.setattr(planners, "is_compiled", lambda: True)
    for seconds in (0.0, 0.9 * planners.WORTH_LOADING, planners.WORTH_LOADING):
        choice.seconds = seconds
        choice.native()
    assert choice.seconds_at_load == [planners.WORTH_LOADING]


def test_native_code_is_compiled_by_another_process_while_calls_go_on(choice, monkeypatch):
    asked, compiled = [], []
    monkeypatch.setattr(planners, "is_compiled", lambda: bool(compiled))
    monkeypatch.setattr(planners.aside, "start", lambda: asked.append(choice.seconds) or True)
    monkeypatch.setattr(planners.aside, "is_under_way", lambda: True)
    for tenths in range(400):
        choice.seconds = tenths / 10
        assert choice.native() is None
    assert asked == [planners.WORTH_ASKING]
    assert choice.seconds_at_load == []
    compiled.append(True)
    choice.seconds += planners.WORTH_LOADING
    choice.native()
    assert choice.seconds_at_load == [choice.seconds]


def test_where_no_other_process_can_compile_this_one_waits_at_last(choice, monkeypatch):
    monkeypatch.setattr(planners, "is_compiled", lambda: False)
    monkeypatch.setattr(planners.aside, "start", lambda: False)
    monkeypatch.setattr(planners.aside, "is_under_way", lambda: False)
    for seconds in (planners.WORTH_ASKING, planners.WORTH_COMPILING - 1, planners.WORTH_COMPILING):
        choice.seconds = seconds
        choice.native()
    assert choice.seconds_at_load == [planners.WORTH_COMPILING]


def test_the_seconds_that_native_code_would_save_are_counted(monkeypatch):
    choice = planners._Choice()
    monkeypatch.setattr(planners, "_choice", choice)
    monkeypatch.setattr(Fusion, "mode", "auto")
    root = tree_sum()
    trees = random_binary_trees(5, seed=0)
    with planning("never"):
        root.map(trees)
        assert choice.seconds > 0
        choice.seconds = 0.0
        root.map(trees)
        known = choice.seconds
        assert 0 < known < 40 * planners.LAUNCH_SECONDS, "a plan that is known takes no planning"
        with ps.profile() as run:
            root.map(trees)
    assert known == pytest.approx(len(run.launches) * planners.LAUNCH_SECONDS, rel=0.5)
    assert choice.seconds == known, "nobody but a profile sees launches one by one"
    with planning("always"):
        root.map(random_binary_trees(5, seed=1))
    assert choice.seconds == known


def test_without_the_compiler_calls_are_planned_plainly(monkeypatch, caplog):
    choice = planners._Choice()
    choice.mode = "always"
    monkeypatch.setattr(planners, "find_spec", lambda name: None)
    with caplog.at_level("INFO", logger="penstock"):
        assert choice.native() is None
        assert choice.native() is None
    assert [record.message for record in caplog.records] == [
        "numba is not installed: calls are planned without native code"
    ]


def test_where_native_code_cannot_be_made_calls_are_planned_plainly(monkeypatch, caplog):
    choice = planners._Choice()
    choice.mode = "always"
    monkeypatch.setitem(sys.modules, "penstock.plan.native.machine", None)
    assert choice.native() is None
    assert choice.native() is None
    (record,) = caplog.records
    assert record.message.startswith("calls are planned without native code: ModuleNotFoundError")


def test_compiled_code_is_kept_by_its_sources(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    folder = kept_code.cache_folder()
    assert folder.parent == tmp_path
    assert not kept_code.is_compiled()
    assert kept_code.can_keep(folder)
    (folder / "kernel.nbc").touch()
    assert not kept_code.is_compiled(), "some of it"
    kept_code.note_compiled()
    assert kept_code.is_compiled()
    monkeypatch.setattr(kept_code, "version", lambda name: "another")
    assert not kept_code.is_compiled(), "another compiler's"


def test_arenas_of_large_inputs_grow_alike(monkeypatch):
    """Rows of sequences that are large, as here all are, do not decide how an arena grows."""
    monkeypatch.setattr(slots_module, "LARGE", 0)

    @ps.function
    def summed(x):
        return ps.foldl(lambda h, row: torch.tanh(h + row), x, torch.zeros(2))

    digests = []
    for mode in ("never", "always"):
        with planning(mode), torch.no_grad():
            schedule = summed.schedule(torch.ones(40, 60, 2))
        digests.append(schedule.digest())
        assert max(item.count for item in schedule.instructions if isinstance(item, Chunk)) <= 2048
    assert digests[0] == digests[1]
