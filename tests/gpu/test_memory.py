"""Memory policies on a device: pinned host memory, streams, and the device's own bytes."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from penstock.autodiff.bounded.runs import Bounded
from penstock.run.blocks import RunnableBlock
from penstock.run.memory import read_ahead
from penstock.run.memory import store as store_module
from penstock.run.memory.costs import bandwidth_of
from penstock.run.memory.pinned import PinnedMemory, slab_of
from penstock.run.windows import loop_windows
from tests.gradients.bounded.runs import bounded_runs

pytestmark = pytest.mark.gpu

ROWS, WIDTH = 64, 256


@ps.function
def recurrent(x, n, w):
    def step(k, h):
        gate = torch.sigmoid(h @ w)
        return k + 1, gate * torch.tanh(h + x) + (1 - gate) * h

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


@pytest.fixture
def is_never_hot(monkeypatch):
    """No code is compiled in the middle of a test: its last bits may be others."""
    monkeypatch.setattr(RunnableBlock, "is_hot", lambda block, half, rows=0: False)


@pytest.fixture
def w():
    made = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)).mul_(0.05)
    return made.cuda().requires_grad_()


def gradients(w, policy="keep", budget=None, length=200):
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).cuda().requires_grad_()
    with ps.memory(policy, budget=budget):
        y = recurrent.map(x, [length] * ROWS, ps.shared(w), out="stack")
    return torch.autograd.grad((y * torch.arange(1.0, WIDTH + 1, device="cuda")).sum(), [x, w])


def peak_of(*arguments):
    gradients(*arguments)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    gradients(*arguments)
    return torch.cuda.max_memory_allocated()


@pytest.mark.usefixtures("is_never_hot")
@pytest.mark.parametrize("budget", [0, "1MiB", "8MiB"])
def test_swapped_gradients_are_the_same_to_the_bit(budget, w, monkeypatch):
    monkeypatch.setattr(Bounded, "divides", False)  # fewer rows of a product have other last bits
    expected = gradients(w)
    for _ in range(3):
        assert all(map(torch.equal, gradients(w, "swap", budget), expected))
    monkeypatch.setattr(store_module, "CHECKS", True)
    assert all(map(torch.equal, gradients(w, "swap", budget), expected))


def test_gradients_of_launches_that_run_in_pieces_agree(w):
    with bounded_runs() as runs:
        found = gradients(w, "swap", "256KiB")
    assert runs[0].divided
    torch.testing.assert_close(found, gradients(w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("policy", "budget"), [("recompute", None), ("recompute", "1MiB")])
def test_recomputed_gradients_agree(policy, budget, w):
    torch.testing.assert_close(gradients(w, policy, budget), gradients(w), rtol=1e-4, atol=1e-4)


def test_auto_agrees_and_says_what_it_chose(w):
    expected = gradients(w)
    with ps.profile() as run:
        found = gradients(w, "auto", "4MiB")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert "Memory (auto, 4 MiB)" in run.explain()


def test_device_memory_stays_inside_the_budget(w):
    fixed = peak_of(w, "swap", 0, 200)
    saved = peak_of(w, "keep", None, 1000) - fixed
    for policy in ("swap", "recompute", "auto"):
        held = peak_of(w, policy, "8MiB", 1000) - fixed
        assert held < (8 << 20) + saved / 20, policy


def lstm_gradients(cell, program, x, policy="keep", budget=None):
    with ps.memory(policy, budget=budget):
        y = program(x)
    loss = (y * torch.arange(1.0, y.shape[-1] + 1, device="cuda")).sum()
    return torch.autograd.grad(loss, list(cell.parameters()))


def lstm_program(cell):
    @ps.function
    def last(x):
        def step(state, row):
            return cell(row.to("cuda", non_blocking=True), state)

        zeros = torch.zeros(ROWS, WIDTH, device="cuda")
        return ps.foldl(step, x, (zeros, zeros))[0]

    return last


@pytest.mark.usefixtures("is_never_hot")
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("is_wide", [False, True])
def test_launches_as_graphs_give_the_same_gradients(is_wide, on_host, monkeypatch):
    """In windows and one by one, from inputs on the device and on the host."""
    monkeypatch.setattr(read_ahead, "PIECE", 7 * ROWS * WIDTH * 4)
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(WIDTH, WIDTH).cuda()
    program = lstm_program(cell)
    x = torch.randn(100, ROWS, WIDTH)
    x = x.pin_memory() if on_host else x.cuda()
    with loop_windows(is_wide):
        expected = lstm_gradients(cell, program, x)
        for policy in ("swap", "recompute", "auto"):
            for _ in range(4):
                found = lstm_gradients(cell, program, x, policy, "32MiB")
                if policy == "swap":
                    assert all(map(torch.equal, found, expected))
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_device_memory_does_not_grow_with_inputs_on_the_host():
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(WIDTH, WIDTH).cuda()
    program = lstm_program(cell)

    def peak(policy, length):
        x = torch.randn(length, ROWS, WIDTH).pin_memory()
        lstm_gradients(cell, program, x, policy, "8MiB")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        lstm_gradients(cell, program, x, policy, "8MiB")
        return torch.cuda.max_memory_allocated() - before

    for policy in ("swap", "recompute", "auto"):
        peak(policy, 1500)
        assert peak(policy, 4000) < 1.1 * peak(policy, 1500) + (4 << 20), policy


def test_bytes_come_back_from_pinned_memory_in_any_order():
    memory = PinnedMemory(torch.device("cuda:0"))
    sent = [
        torch.randint(0, 256, (100_000 + k,), dtype=torch.uint8, device="cuda") for k in range(9)
    ]
    kept = [part.clone() for part in sent]
    away = [memory.send([part]) for part in sent]
    for each, part in zip(away, sent, strict=True):
        each.settle()
        part.zero_()  # after the copy, by the order of streams
    arriving = [each.bring() for each in reversed(away)]
    for each in away:
        each.free()
    others = [memory.send([torch.zeros_like(part)]) for part in sent]
    for each, part in zip(arriving, reversed(kept), strict=True):
        assert torch.equal(each.settle()[0], part)
    del others, away
    assert all(extents.used == 0 for extents in slab_of(memory.device).extents)


def test_bandwidth_is_measured():
    bandwidth = bandwidth_of(torch.device("cuda:0"))
    assert bandwidth.out > 1e8
    assert bandwidth.back > 1e8
