"""When something fails while values are away: a clear error, no wrong gradient, nothing left."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import threading
import time
from itertools import count

import pytest
import torch

import penstock as ps
from penstock.autodiff.bounded import strategies
from penstock.autodiff.bounded.ledger import Ledger
from penstock.autodiff.bounded.recomputing import Recomputing
from penstock.autodiff.gradients import GradientArena
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Taping
from penstock.errors import SpillError
from penstock.run.arenas import Arena
from penstock.run.memory import room, spill_file
from penstock.run.memory.store import Store
from penstock.run.outputs import OutputColumn
from penstock.run.runner import Runner
from tests.gradients.bounded.runs import bounded_runs

pytestmark = pytest.mark.usefixtures("interpreted_loops")


LIMITED = """
import resource
import torch
from penstock.errors import SpillError
from penstock.run.memory.spill_file import SpillFile

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
file = SpillFile()
away = [file.send([torch.ones(3000, dtype=torch.uint8)]) for _ in range(3)]
away[0].settle()
try:
    away[2].settle()
except SpillError:
    raise SystemExit(0)
raise SystemExit("no error")
"""


FORKED = """
import os
import torch
import penstock as ps
from penstock.run.memory import spill_file

spill_file.AT_ONCE = 0


@ps.function
def recurrent(x, n, w):
    def step(k, h):
        return k + 1, torch.tanh(h @ w + x) * torch.sigmoid(h)

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
w = torch.linspace(-0.3, 0.4, 36).view(6, 6).requires_grad_()


def loss(policy, budget=None):
    with ps.memory(policy, budget=budget):
        rows = recurrent.map(x, [13, 22, 3, 7], ps.shared(w))
    return sum((row * torch.arange(1.0, 7.0)).sum() for row in rows)


def is_right(loss):
    found = torch.autograd.grad(loss, [x, w], retain_graph=True)
    return all(map(torch.equal, found, expected))


expected = torch.autograd.grad(loss("keep"), [x, w])
for budget in (0, 2000, 6000):
    made = loss("swap", budget)
    child = os.fork()
    if not child:
        os._exit(0 if is_right(made) and is_right(made) and is_right(loss("swap", 0)) else 7)
    assert is_right(made) and is_right(loss("swap", 0))
    assert os.waitpid(child, 0)[1] == 0, budget
    assert is_right(made)
"""


@ps.function
def recurrent(x, n, w):
    def step(k, h):
        return k + 1, torch.tanh(h @ w + x) * torch.sigmoid(h)

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


@ps.function
def placed(x, n, w):
    """The same on two devices."""

    def step(k, h):
        with ps.device("cpu:0"):
            made = torch.tanh(h @ w + x)
        with ps.device("cpu:1"):
            return k + 1, made * torch.sigmoid(made)

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


@pytest.fixture
def w():
    return torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).mul_(0.4).requires_grad_()


def inputs():
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()


def loss_of(x, w, policy="keep", budget=None, lengths=(3, 12, 0, 7), program=recurrent):
    with ps.memory(policy, budget=budget):
        rows = program.map(x, list(lengths), ps.shared(w))
    return sum((row * torch.arange(1.0, 7.0)).sum() for row in rows)


def assert_next_call_works(w):
    """Gradients under every policy are those of "keep"."""
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    for policy, budget in (("swap", 0), ("recompute", 600), ("auto", 900)):
        found = torch.autograd.grad(loss_of(x, w, policy, budget), [x, w])
        torch.testing.assert_close(found, expected)


def spill_threads():
    return [each for each in threading.enumerate() if each.name.startswith("penstock-spill")]


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _nothing_left():
    """Whatever a test does, no thread and no file is left of it."""
    gc.collect()
    before = open_files()
    yield
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        gc.collect()
        if not spill_threads() and open_files() <= before:
            return
        time.sleep(0.01)
    raise AssertionError(f"left: {spill_threads()}, {open_files() - before} files")


@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_a_full_disk_in_forward_is_an_error(at_once, w, monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", at_once)
    x = inputs()

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(SpillError, match="could not be written to disk"):
            loss_of(x, w, "swap", 0)
    assert_next_call_works(w)


SAVED = r"These are values that block \S+ has saved for [1-4] rows, at .*test_faults.py:\d+"
ROWS = "These are rows from which launches run again."
AGAIN = 'ith ps.memory("recompute") values are computed again instead.'
FEWER = f"With a larger budget fewer values leave, if memory holds them; w{AGAIN}"
FULL = {
    ("swap", 0): (SAVED, FEWER),
    ("swap", None): (SAVED, f"W{AGAIN}"),
    ("auto", 300): ("", FEWER),
    ("recompute", 200): (ROWS, "With a larger budget, or with none, fewer rows leave memory."),
}


@pytest.mark.parametrize(("policy", "budget"), FULL)
def test_a_full_disk_says_whose_values_and_what_helps(policy, budget, w, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(strategies, "IN_FLIGHT", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(SpillError) as found:
            loss_of(inputs(), w, policy, budget, [3, 40, 0, 60])
    whose, advice = FULL[policy, budget]
    notes = getattr(found.value, "__notes__", [])
    assert notes[-1] == advice
    assert re.match(whose, notes[0])
    assert "recompute" not in str(found.value)
    del found
    assert_next_call_works(w)


@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_a_disk_that_was_full_once_can_be_used_when_it_has_room(at_once, w, monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", at_once)
    x, lengths = inputs(), [30, 12, 5, 27]
    expected = torch.autograd.grad(loss_of(x, w, lengths=lengths), [x, w])
    loss = loss_of(x, w, "auto", None, lengths)

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        failing_at(patch, Page, "go_back", 3)
        with pytest.raises(SpillError):
            torch.autograd.grad(loss, [x, w], retain_graph=True)
    for _ in range(2):
        found = torch.autograd.grad(loss, [x, w], retain_graph=True)
        assert all(map(torch.equal, found, expected))


def test_a_limit_on_the_size_of_files_is_an_error():
    """In a process of its own: the limit holds for all files of a process."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system forks no processes")
def test_a_forked_process_goes_backward_without_the_thread_of_its_parent():
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_a_disk_that_fails_in_backward_is_an_error(at_once, w, monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", at_once)
    loss = loss_of(inputs(), w, "swap", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda *arguments: 0)
        with pytest.raises(SpillError, match="could not be read back"):
            loss.backward()
    del loss
    assert_next_call_works(w)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize(("policy", "budget"), [("swap", 0), ("recompute", 600), ("auto", 900)])
def test_an_error_in_forward_leaves_nothing(policy, budget, error, w, monkeypatch):
    original = Runner._step
    count = 0

    def fail(self, step):
        nonlocal count
        count += 1
        if count == 9:
            raise error
        return original(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_step", fail)
        with bounded_runs() as runs, pytest.raises(error):
            loss_of(inputs(), w, policy, budget)
    runs.clear()
    assert_next_call_works(w)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize(("policy", "budget"), [("swap", 0), ("recompute", 600), ("auto", 900)])
def test_an_error_in_backward_leaves_what_can_be_gone_through_again(
    policy, budget, error, w, monkeypatch
):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    with bounded_runs() as runs:
        loss = loss_of(x, w, policy, budget)
    kind = type(runs[0].strategy)
    runs.clear()
    original = kind.enter
    count = 0

    def fail(self, run, page):
        nonlocal count
        count += 1
        if count == 5:
            raise error
        original(self, run, page)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "enter", fail)
        with pytest.raises(error):
            torch.autograd.grad(loss, [x, w], retain_graph=True)
    found = torch.autograd.grad(loss, [x, w])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("at", range(2, 6))
def test_an_interrupt_as_a_segment_is_left_loses_nothing(at, w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    loss = loss_of(x, w, "recompute", 600)
    original, calls = Recomputing.forget, count()

    def forget(self, segment):
        if next(calls) == at:
            raise KeyboardInterrupt
        original(self, segment)

    with monkeypatch.context() as patch:
        patch.setattr(Recomputing, "forget", forget)
        with pytest.raises(KeyboardInterrupt):
            torch.autograd.grad(loss, [x, w], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)


@pytest.mark.parametrize(("kind", "at_once"), [("_Read", 0), ("_ReadAtOnce", 1 << 20)])
def test_an_interrupt_while_copies_are_waited_for_loses_nothing(kind, at_once, w, monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", at_once)
    reading = getattr(spill_file, kind)
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    loss = loss_of(x, w, "swap", 0)
    original = reading.settle
    count = 0

    def interrupted(self):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(reading, "settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch.autograd.grad(loss, [x, w], retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(loss, [x, w]), expected))


@pytest.fixture
def many_bytes_by_a_thread(monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", 0)


def failing_once(message, at):
    """A `Runner._step` whose step number `at` fails once for want of memory."""
    original = Runner._step
    count = 0

    def step(self, item):
        nonlocal count
        count += 1
        if count == at:
            raise torch.OutOfMemoryError(message)
        return original(self, item)

    return step


def test_without_a_budget_auto_acts_when_an_allocation_fails(w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    with monkeypatch.context() as patch, ps.profile() as profile, bounded_runs() as runs:
        patch.setattr(Runner, "_step", failing_once("Tried to allocate 8 GiB", 9))
        loss = loss_of(x, w, "auto")
    store = runs[0].strategy.store
    assert store.sent
    assert store.budget is not None
    assert "an allocation failed" in profile.explain()
    found = torch.autograd.grad(loss, [x, w])
    assert all(map(torch.equal, found, expected))
    runs.clear()


def test_running_out_of_memory_says_where_and_what_would_help(w, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_step", failing_once("Tried to allocate 8 GiB", 9))
        with pytest.raises(torch.OutOfMemoryError, match="8 GiB") as found:
            loss_of(inputs(), w)
    notes = "\n".join(found.value.__notes__)
    assert "in block recurrent" in notes
    assert "rows" in notes
    assert "Values saved for backward take" in notes
    assert 'ps.memory("auto", budget=...)' in notes
    del found
    assert_next_call_works(w)


ADVICE = {
    ("keep", None): 'With ps.memory("auto", budget=...) around the call',
    ("swap", 600): "With a smaller budget",
    ("swap", 0): "",
    ("swap", None): "With a budget below 64 MiB, which is taken where none is named,",
    ("auto", None): 'With a budget, as in ps.memory("auto", budget=...),',
    ("recompute", None): 'With a budget, as in ps.memory("recompute", budget=...),',
}


@pytest.mark.parametrize(("policy", "budget"), ADVICE)
def test_running_out_of_memory_in_backward_names_the_block(policy, budget, w, monkeypatch):
    loss = loss_of(inputs(), w, policy, budget)

    def fail(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.autodiff.page.Page.go_back", fail)
        with pytest.raises(RuntimeError, match="tried to allocate 8 B") as found:
            loss.backward()
    who, held, advice = found.value.__notes__
    assert re.match(r"in block recurrent.loop:\w+\.backward, \d+ rows?, at .*test_faults", who)
    told = "" if policy == "keep" else f", whose memory policy is: {policy}"
    assert re.match(rf"Values saved for backward take [1-9][\d.]* (Ki)?B in this call{told}", held)
    if budget == 0:
        assert advice == (
            "No budget is smaller, so what is held is at work: map fewer instances at a time."
        )
    else:
        assert advice == (
            f"{ADVICE[policy, budget]} fewer of them are held at once; "
            "mapping fewer instances at a time takes less as well."
        )
    del found, loss
    assert_next_call_works(w)


@pytest.mark.parametrize(("policy", "budget"), [("swap", 0), ("recompute", 600)])
def test_running_out_of_memory_as_values_come_back_names_the_block(policy, budget, w, monkeypatch):
    loss = loss_of(inputs(), w, policy, budget)

    def fail(*arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.run.memory.store.Store.fetch", fail)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            loss.backward()
    assert any(".backward, " in note for note in found.value.__notes__)
    del found, loss
    assert_next_call_works(w)


def failing_at(monkeypatch, kind, name, at):
    """Let a method fail once for want of memory, when it is called for the time `at`."""
    original, calls = getattr(kind, name), count(1)

    def method(self, *arguments):
        if next(calls) == at:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B")
        return original(self, *arguments)

    monkeypatch.setattr(kind, name, method)
    return calls


HELD = [("swap", 3000), ("auto", None), ("auto", "1MiB")]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("policy", "budget"), HELD)
@pytest.mark.parametrize(
    ("kind", "name", "at"), [(Page, "go_back", 2), (GradientArena, "__init__", 1)]
)
def test_values_leave_where_a_backward_half_has_no_room(
    kind, name, at, policy, budget, keeps, w, monkeypatch
):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    with bounded_runs() as runs:
        loss = loss_of(x, w, policy, budget)
    store = runs[0].strategy.store
    runs.clear()
    sent = store.sent
    with monkeypatch.context() as patch:
        failing_at(patch, kind, name, at)
        found = torch.autograd.grad(loss, [x, w], retain_graph=keeps)
    torch.testing.assert_close(found, expected)
    assert store.sent > sent
    if keeps:
        torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)
    assert not store.bytes


@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize(("policy", "budget"), [("swap", 3000), ("auto", 900)])
def test_what_comes_back_is_tried_again_where_others_can_leave(policy, budget, at, w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    with bounded_runs() as runs:
        loss = loss_of(x, w, policy, budget)
    store = runs[0].strategy.store
    runs.clear()
    with monkeypatch.context() as patch:
        calls = failing_at(patch, Store, "fetch", at)
        found = torch.autograd.grad(loss, [x, w])
    assert next(calls) > at, "nothing has failed"
    torch.testing.assert_close(found, expected)
    assert not store.bytes


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize(("kind", "name"), [(Store, "fetch"), (Runner, "_step")])
def test_a_segment_that_has_no_room_runs_again_from_its_beginning(kind, name, at, w, monkeypatch):
    """Rows that other segments start from leave."""
    x = inputs()
    lengths = [3, 40, 0, 60]
    expected = torch.autograd.grad(loss_of(x, w, lengths=lengths), [x, w])
    loss = loss_of(x, w, "recompute", 1200, lengths)
    with monkeypatch.context() as patch:
        calls = failing_at(patch, kind, name, at)
        found = torch.autograd.grad(loss, [x, w])
    assert next(calls) > at, "nothing has failed"
    torch.testing.assert_close(found, expected)


@pytest.fixture
def lasting(monkeypatch):
    """Memory that is kept for later calls: a piece for each number in the list."""
    kept = [1]

    def give_back():
        return bool(kept and kept.pop())

    monkeypatch.setattr(room, "give_back_lasting", give_back)
    return kept


@pytest.mark.parametrize(("policy", "budget"), [("keep", None), *HELD, ("recompute", 600)])
@pytest.mark.parametrize(("kind", "name"), [(Page, "go_back"), (GradientArena, "__init__")])
def test_what_is_kept_for_later_calls_goes_where_backward_has_no_room(
    kind, name, policy, budget, lasting, w, monkeypatch
):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    loss = loss_of(x, w, policy, budget)
    with monkeypatch.context() as patch, ps.set_fusion("never"):
        calls = failing_at(patch, kind, name, 1)
        found = torch.autograd.grad(loss, [x, w])
    assert next(calls) > 2
    assert not lasting
    torch.testing.assert_close(found, expected)


def failing_outputs(monkeypatch, times=1):
    """Let outputs be copied out in vain at first."""
    original, calls = OutputColumn.separate_rows, count()

    def rows(self):
        found = original(self)
        if next(calls) < times:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B")
        return found

    monkeypatch.setattr(OutputColumn, "separate_rows", rows)


@pytest.mark.parametrize(("policy", "budget"), HELD)
@pytest.mark.parametrize("program", [recurrent, placed])
def test_values_leave_where_outputs_have_no_room(program, policy, budget, w, monkeypatch):
    x, lengths = inputs(), [3, 40, 0, 60]
    expected = torch.autograd.grad(loss_of(x, w, lengths=lengths, program=program), [x, w])
    with monkeypatch.context() as patch:
        failing_outputs(patch)
        loss = loss_of(x, w, policy, budget, lengths, program)
    torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)


def test_outputs_are_copied_once_more_where_memory_was_given_back(lasting, w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    with monkeypatch.context() as patch:
        failing_outputs(patch)
        loss = loss_of(x, w)
    assert not lasting
    torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)


@pytest.mark.parametrize(("policy", "budget"), [("keep", None), ("swap", 0)])
def test_outputs_that_have_no_room_say_what_would_help(policy, budget, w, monkeypatch):
    with monkeypatch.context() as patch:
        failing_outputs(patch, 9)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            loss_of(inputs(), w, policy, budget)
    assert "between launches" in found.value.__notes__
    del found
    assert_next_call_works(w)


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("budget", [600, 1200])
def test_rows_that_a_segment_starts_from_are_kept_once_others_have_left(
    budget, at, lasting, w, monkeypatch
):
    x, lengths = inputs(), [13, 22, 0, 7]
    expected = torch.autograd.grad(loss_of(x, w, lengths=lengths), [x, w])
    missing, gather, calls, inside = Ledger.missing, Arena.gather, count(1), []

    def looked_at(self, run, step):
        found = missing(self, run, step)
        while True:
            inside.append(1)
            try:
                item = next(found, None)
            finally:
                inside.pop()
            if item is None:
                return
            yield item

    def failing(self, *arguments):
        if inside and next(calls) == at:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B")
        return gather(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "missing", looked_at)
        patch.setattr(Arena, "gather", failing)
        loss = loss_of(x, w, "recompute", budget, lengths)
    assert next(calls) > at
    torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)


def failing_growth(monkeypatch, at):
    """Let the growth of an arena number `at` fail once for want of memory."""
    original, calls = Arena.grow, count()

    def grow(self, *arguments):
        if next(calls) == at:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B")
        original(self, *arguments)

    monkeypatch.setattr(Arena, "grow", grow)


def test_values_leave_where_an_arena_cannot_grow(w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])
    relieved = []
    with monkeypatch.context() as patch:
        failing_growth(patch, 0)
        patch.setattr(Store, "shrink", lambda self: relieved.append(self) or 1)
        found = torch.autograd.grad(loss_of(x, w, "auto"), [x, w])
    assert len(relieved) == 1
    assert all(map(torch.equal, found, expected))
    relieved.clear()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("policy", "budget"), HELD)
def test_values_of_all_devices_leave_where_gradients_have_no_room(
    policy, budget, is_known, w, monkeypatch
):
    """On a way that is known from an earlier pass, threads of devices make arenas of gradients."""
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w, program=placed), [x, w])
    with bounded_runs() as runs:
        loss = loss_of(x, w, policy, budget, program=placed)
    stores = [strategy.store for strategy in runs[0].strategies]
    runs.clear()
    if is_known:
        torch.autograd.grad(loss, [x, w], retain_graph=True)
    sent = sum(store.sent for store in stores)
    with monkeypatch.context() as patch:
        failing_at(patch, GradientArena, "__init__", 1)
        found = torch.autograd.grad(loss, [x, w])
    torch.testing.assert_close(found, expected)
    assert sum(store.sent for store in stores) > sent or policy == "swap"


@pytest.mark.parametrize("at", [0, 1])
def test_values_of_all_devices_leave_where_an_arena_cannot_grow(at, w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w, program=placed), [x, w])
    relieved = []
    with monkeypatch.context() as patch:
        failing_growth(patch, at)
        patch.setattr(Store, "shrink", lambda self: relieved.append(self) or 1)
        loss = loss_of(x, w, "auto", program=placed)
    assert len(set(map(id, relieved))) == 2
    torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)
    relieved.clear()


@pytest.mark.parametrize(("policy", "budget"), [("keep", None), ("swap", 3000)])
def test_a_device_that_runs_out_of_memory_says_where(policy, budget, w, monkeypatch):
    def fail(self, step):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B")

    with monkeypatch.context() as patch:
        patch.setattr(Taping, "_launch", fail)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            loss_of(inputs(), w, policy, budget, program=placed)
    who, held, _ = found.value.__notes__
    assert re.match(r"in block placed.loop:\w+, \d+ rows?, at .*test_faults", who)
    assert held.startswith("Values saved for backward take")
    del found
    assert_next_call_works(w)


def test_an_arena_that_cannot_grow_says_what_would_help(w, monkeypatch):
    with monkeypatch.context() as patch:
        failing_growth(patch, 0)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            loss_of(inputs(), w)
    assert "between launches" in found.value.__notes__
    assert any('ps.memory("auto", budget=...)' in note for note in found.value.__notes__)
    del found
    assert_next_call_works(w)


def test_gradients_that_have_no_room_say_what_would_help(w, monkeypatch):
    loss = loss_of(inputs(), w, "swap", 600)

    def fail(*arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.autodiff.gradients.GradientArena.__init__", fail)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            loss.backward()
    assert "between launches of backward" in found.value.__notes__
    del found, loss
    assert_next_call_works(w)


@pytest.mark.usefixtures("many_bytes_by_a_thread")
def test_no_thread_is_started_where_an_allocation_has_failed(w, monkeypatch):
    """There may be no memory for it, and Python waits for ever for one that fails as it starts."""
    x = inputs()
    expected = torch.autograd.grad(loss_of(x, w), [x, w])

    def fail(self):
        raise AssertionError("a thread is started")

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_step", failing_once("Tried to allocate 8 GiB", 9))
        patch.setattr(threading.Thread, "start", fail)
        found = torch.autograd.grad(loss_of(x, w, "auto"), [x, w])
    assert all(map(torch.equal, found, expected))
