"""Policies compose with all that backward passes can be asked for."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import penstock as ps
from penstock.autodiff.bounded.program_runs import BoundedRun
from penstock.plan.machine import Machine
from penstock.run.memory import store as store_module
from tests.gradients.bounded.runs import bounded_runs

pytestmark = pytest.mark.usefixtures("interpreted_loops")

#: Budgets under which pages of the programs here leave, and segments are closed.
POLICIES = [("swap", 0), ("swap", 2000), ("recompute", 1000), ("auto", 1500), ("auto", None)]

by_policy = pytest.mark.parametrize(("policy", "budget"), POLICIES)


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    """Swapped bytes are checked."""
    monkeypatch.setattr(store_module, "CHECKS", True)


@pytest.fixture
def w():
    return torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).mul_(0.4).requires_grad_()


def inputs():
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()


@ps.function
def recurrent(x, n, w):
    def step(k, h):
        return k + 1, torch.tanh(h @ w + x) * torch.sigmoid(h)

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


LENGTHS = [3, 12, 0, 7]


def outputs(x, w, policy="keep", budget=None):
    with ps.memory(policy, budget=budget):
        return recurrent.map(x, LENGTHS, ps.shared(w))


def scalar(rows):
    return sum((row * torch.arange(1.0, 7.0)).sum() for row in rows)


def assert_same(actual, expected, policy="swap"):
    tolerance = 0 if policy == "swap" else 1e-6
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@by_policy
def test_a_retained_graph_can_be_gone_through_again(policy, budget, w):
    x = inputs()
    expected = torch.autograd.grad(scalar(outputs(x, w)), [x, w])
    loss = scalar(outputs(x, w, policy, budget))
    for _ in range(2):
        assert_same(torch.autograd.grad(loss, [x, w], retain_graph=True), expected, policy)
    assert_same(torch.autograd.grad(loss, [x, w]), expected, policy)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, [x, w])


@by_policy
def test_an_instance_that_ended_early_goes_backward_once(policy, budget, w):
    rows = outputs(inputs(), w, policy, budget)
    scalar(rows).backward()
    with pytest.raises(RuntimeError, match="a second time"):
        rows[0].sum().backward()


@by_policy
def test_instances_go_backward_one_by_one(policy, budget, w):
    x = inputs()
    expected = torch.autograd.grad(scalar(outputs(x, w)), [x, w])
    rows = outputs(x, w, policy, budget)
    total = [torch.zeros_like(x), torch.zeros_like(w)]
    for row in rows:
        found = torch.autograd.grad(scalar([row]), [x, w], allow_unused=True)
        total = [a if b is None else a + b for a, b in zip(total, found, strict=True)]
    torch.testing.assert_close(total, list(expected))


@by_policy
def test_gradients_can_be_differentiated(policy, budget, w):
    x = inputs()

    def second(rows):
        first = torch.autograd.grad(scalar(rows), [x, w], create_graph=True)
        return torch.autograd.grad(sum((each**2).sum() for each in first), [x, w])

    torch.testing.assert_close(second(outputs(x, w, policy, budget)), second(outputs(x, w)))


@by_policy
def test_a_plan_that_was_kept_serves_every_policy(policy, budget, w, monkeypatch):
    x = inputs()
    expected = torch.autograd.grad(scalar(outputs(x, w)), [x, w])
    made = []
    monkeypatch.setattr(Machine, "__init__", lambda *args, **kwargs: made.append(args))
    for _ in range(2):
        found = torch.autograd.grad(scalar(outputs(x, w, policy, budget)), [x, w])
        assert_same(found, expected, policy)
    assert not made


@by_policy
def test_a_backward_pass_may_run_outside_of_the_scope_and_on_another_thread(policy, budget, w):
    x = inputs()
    expected = torch.autograd.grad(scalar(outputs(x, w)), [x, w])
    loss = scalar(outputs(x, w, policy, budget))
    with ps.memory("keep"):
        assert_same(torch.autograd.grad(loss, [x, w]), expected, policy)


@by_policy
def test_weights_changed_before_backward_are_an_error(policy, budget, w):
    rows = outputs(inputs(), w, policy, budget)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        scalar(rows).backward()


def test_inputs_changed_before_segments_run_again_are_an_error(w):
    x = inputs()
    with torch.no_grad():
        values = x.clone()
    rows = outputs(values, w, "recompute", 1000)
    values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        scalar(rows).backward()


@by_policy
def test_random_operations_repeat_their_draws(policy, budget, w):
    @ps.function
    def noisy(x, n):
        def step(k, h):
            return k + 1, torch.nn.functional.dropout(torch.tanh(h @ w) + 0.1 * torch.randn(6))

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    x = inputs()
    found = []
    for scope in (ps.memory("keep"), ps.memory(policy, budget=budget)):
        torch.manual_seed(3)
        with scope:
            rows = noisy.map(x, LENGTHS)
        found.append(torch.autograd.grad(scalar(rows), [x, w]))
    assert_same(found[1], found[0], policy)


@by_policy
def test_unchanged_eager_code_follows_the_policy(policy, budget, w):
    def eager(x, n):
        h = x
        for _ in range(n):
            h = torch.tanh(h @ w + x) * torch.sigmoid(h)
            if h.sum() > 100:
                break
        return h

    x = inputs()
    ps.map(eager, list(x), LENGTHS)  # what is one step is found out at the first call
    expected = torch.autograd.grad(scalar(ps.map(eager, list(x), LENGTHS)), [x, w])
    with bounded_runs() as runs, ps.memory(policy, budget=budget):
        rows = ps.map(eager, list(x), LENGTHS)
    assert runs
    assert_same(torch.autograd.grad(scalar(rows), [x, w]), expected, policy)


def test_a_step_that_cannot_be_run_twice_keeps_its_graph(w):
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, h):
            calls.append(len(calls))
            print(end="")
            return torch.sin(h) * 2

    module = Counted()

    def eager(x, n):
        h = x
        for _ in range(n):
            h = module(torch.tanh(h @ w))
        return h

    x = inputs()
    expected = torch.autograd.grad(scalar(eager(x[k], n) for k, n in enumerate(LENGTHS)), [x, w])
    with ps.memory("recompute", budget=600):
        rows = ps.map(eager, list(x), LENGTHS)
    count = len(calls)
    found = torch.autograd.grad(scalar(rows), [x, w])
    assert len(calls) == count
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory", ["recompute", ps.memory("swap", budget=600)])
def test_a_function_has_a_default_policy(memory, w):
    program = ps.function(recurrent.__wrapped__, memory=memory)
    x = inputs()
    expected = torch.autograd.grad(scalar(outputs(x, w)), [x, w])
    with bounded_runs() as runs:
        rows = program.map(x, LENGTHS, ps.shared(w))
        with ps.memory("keep"):
            program.map(x, LENGTHS, ps.shared(w))
    assert len(runs) == 1
    torch.testing.assert_close(torch.autograd.grad(scalar(rows), [x, w]), expected)


@pytest.fixture
def _unknown(monkeypatch):
    """Nothing is known of earlier calls."""
    monkeypatch.setattr(BoundedRun, "history", None)


@pytest.mark.usefixtures("_unknown")
def test_auto_swaps_and_runs_again_as_costs_say(w, monkeypatch):
    from penstock.autodiff.bounded import choosing
    from penstock.run.memory.costs import Bandwidth

    x = inputs()
    expected = torch.autograd.grad(scalar(outputs(x, w)), [x, w])
    for bandwidth, word in ((Bandwidth(1e15, 1e15, 0.0), "swapped"), (Bandwidth(1, 1, 9), "run")):
        monkeypatch.setattr(choosing, "bandwidth_of", lambda device, known=bandwidth: known)
        with ps.profile() as profile:
            rows = outputs(x, w, "auto", 1500)
        text = profile.explain()
        assert "Memory (auto, 1.465 KiB): of" in text
        assert ("0 swapped" in text) == (word == "run")
        assert ("0 to be run again" in text) == (word == "swapped")
        torch.testing.assert_close(torch.autograd.grad(scalar(rows), [x, w]), expected)


@pytest.mark.parametrize(
    ("policy", "budget", "words"),
    [
        ("swap", 0, "Memory (swap, 0 B): 12 copies"),
        ("recompute", 1000, "3 of 4 segments"),
        ("auto", None, "no allocation failed"),
        ("auto", "1GiB", "fits into the budget"),
    ],
)
@pytest.mark.usefixtures("_unknown")
def test_a_profile_says_what_became_of_saved_values(policy, budget, words, w):
    with ps.profile() as profile:
        outputs(inputs(), w, policy, budget)
    assert words in profile.explain()
    assert "Memory" not in explained_without_policy(w)


def explained_without_policy(w):
    with ps.profile() as profile:
        outputs(inputs(), w)
    return profile.explain()


@pytest.fixture
def _many_switches():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@by_policy
@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.usefixtures("_many_switches")
def test_threads_go_through_a_retained_graph_one_after_the_other(policy, budget, is_placed, w):
    x, lengths = inputs(), [33, 42, 3, 27]
    loop = placed_loop(w) if is_placed else recurrent
    shared = () if is_placed else (ps.shared(w),)
    expected = torch.autograd.grad(scalar(loop.map(x, lengths, *shared)), [x, w])
    with ps.memory(policy, budget=budget):
        loss = scalar(loop.map(x, lengths, *shared))

    def go(_):
        return [torch.autograd.grad(loss, [x, w], retain_graph=True) for _ in range(3)]

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(go, range(2)):
            for each in found:
                assert_same(each, expected, policy)
    assert_same(torch.autograd.grad(loss, [x, w]), expected, policy)


def placed_loop(w):
    """A loop whose body is on two devices."""

    @ps.function
    def placed(x, n):
        def step(k, h):
            with ps.device("cpu:0"):
                g = torch.tanh(h @ w) * torch.sin(h)
            with ps.device("cpu:1"):
                return k + 1, torch.cos(g) * torch.sigmoid(h)

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    return placed


@by_policy
def test_every_policy_holds_on_several_devices(policy, budget, w):
    """Each device has a store of its own."""
    placed, x = placed_loop(w), inputs()
    expected = torch.autograd.grad(scalar(placed.map(x, LENGTHS)), [x, w])
    with ps.profile() as profile, ps.memory(policy, budget=budget):
        rows = placed.map(x, LENGTHS)
    for device in ("cpu:0", "cpu:1"):
        assert f"{device}: Memory ({policy}" in profile.explain()
    for _ in range(2):
        found = torch.autograd.grad(scalar(rows), [x, w], retain_graph=True)
        assert_same(found, expected, policy)
    assert_same(torch.autograd.grad(scalar(rows), [x, w]), expected, policy)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(scalar(rows), [x, w])


@by_policy
@pytest.mark.parametrize("policy_is_first", [True, False])
def test_a_segment_that_runs_again_has_values_that_all_instances_start_from(
    w, policy, budget, policy_is_first
):
    """Runs with a policy and without share plans, in which these lie with computed values."""
    start, x = torch.full((6,), 0.3, requires_grad=True), inputs().detach()

    @ps.function
    def from_start(number, n, w):
        def step(k, h):
            return k + 1, torch.tanh(h @ w + start + x[number]) * torch.sigmoid(h)

        return ps.while_loop(lambda k, h: k < n, step, (0, start))[1]

    def gradients(policy, budget):
        with ps.memory(policy, budget=budget):
            rows = from_start.map([0, 1, 2, 3], LENGTHS, ps.shared(w))
        loss = scalar(rows)
        first = torch.autograd.grad(loss, (w, start), retain_graph=True)
        return loss, first, torch.autograd.grad(loss, (w, start))

    runs = [(policy, budget), ("keep", None)]
    found = [gradients(*run) for run in (runs if policy_is_first else runs[::-1])]
    h = [start] * 4
    for row, count in enumerate(LENGTHS):
        for _ in range(count):
            h[row] = torch.tanh(h[row] @ w + start + x[row]) * torch.sigmoid(h[row])
    loss = scalar(h)
    once = torch.autograd.grad(loss, (w, start))
    for each in found:
        torch.testing.assert_close(each, (loss, once, once), rtol=1e-5, atol=1e-5)
