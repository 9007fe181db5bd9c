"""When something fails while values are away: a clear error, no wrong gradient, nothing left."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import penstock as ps
from penstock.errors import SpillError
from penstock.run.memory import spill_file
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


@ps.function
def recurrent(x, n, w):
    def step(k, h):
        return k + 1, torch.tanh(h @ w + x) * torch.sigmoid(h)

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


@pytest.fixture
def w():
    return torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).mul_(0.4).requires_grad_()


def inputs():
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()


def loss_of(x, w, policy="keep", budget=None):
    with ps.memory(policy, budget=budget):
        rows = recurrent.map(x, [3, 12, 0, 7], ps.shared(w))
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


def test_a_limit_on_the_size_of_files_is_an_error():
    """In a process of its own: the limit holds for all files of a process."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, timeout=300)
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


def test_running_out_of_memory_in_backward_names_the_block(w, monkeypatch):
    loss = loss_of(inputs(), w, "swap", 600)

    def fail(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.autodiff.page.Page.go_back", fail)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            loss.backward()
    assert any(".backward, " in note for note in found.value.__notes__)
    del found, loss
    assert_next_call_works(w)
