"""Bounded runs hold what they say: counted by the library, and by the storages that torch makes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import penstock as ps
from penstock.autodiff import leading_slots
from penstock.plan import slots
from penstock.plan.slots import FIRST_CHUNK
from penstock.run.memory.costs import bandwidth_of
from tests.gradients.bounded.accounting import LiveBytes
from tests.gradients.bounded.runs import bounded_runs

pytestmark = pytest.mark.usefixtures("interpreted_loops")

#: Bytes of one value of all rows, and more than one launch saves.
ROWS, WIDTH = 16, 32
VALUE = ROWS * WIDTH * 4
LAUNCH = 6 * VALUE

#: Bytes of the smallest arena.
ARENAS = FIRST_CHUNK * WIDTH * 4


@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(WIDTH, WIDTH, generator=generator).mul_(0.1).requires_grad_()


@ps.function
def recurrent(x, n, w):
    """A gated loop: each step saves several values."""

    def step(k, h):
        gate = torch.sigmoid(h @ w)
        return k + 1, gate * torch.tanh(h + x) + (1 - gate) * h

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


def run(x, length, w):
    return recurrent.map(x, [length] * ROWS, ps.shared(w), out="stack")


def train(policy, budget, length, w, counted=True):
    """One step of training: live bytes at most, those of the store at most, the gradients."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with bounded_runs() as runs, LiveBytes() if counted else nullcontext() as live:
        scope = ps.memory(policy, budget=budget)
        with scope:
            y = run(x, length, w)
        loss = (y * torch.arange(1.0, WIDTH + 1)).sum()
        del y
        gradients = torch.autograd.grad(loss, [x, w])
    store = runs[0].strategy.store.peak if runs else None
    return live.peak if live else None, store, gradients


@pytest.fixture(scope="module", autouse=True)
def _built(weights):
    """Blocks are built beforehand: tracing takes memory too."""
    train("keep", None, 3, weights, counted=False)
    train("keep", None, 40, weights, counted=False)
    bandwidth_of(torch.device("cpu"))


@pytest.fixture(scope="module")
def fixed(weights):
    """Bytes that live though nothing is saved: arenas, gradients, the launch at work."""
    return train("swap", 0, 200, weights)[0]


@pytest.fixture(scope="module")
def least(weights):
    """Bytes of the shortest loop, in which hardly anything is saved. Nothing is sent away either:
    what is on its way lives for as long as the copying thread takes.
    """
    return train("keep", None, 2, weights)[0]


def test_kept_values_grow_with_the_loop(weights, least):
    short, long = (train("keep", None, n, weights)[0] - least for n in (80, 320))
    assert long > 3 * short > 500 * VALUE


@pytest.mark.parametrize("budget", [8 * VALUE, 40 * VALUE])
def test_a_swapped_loop_stays_inside_its_budget(budget, weights, fixed):
    live, store, gradients = train("swap", budget, 200, weights)
    assert store <= budget + LAUNCH
    assert live <= fixed + budget + LAUNCH
    expected = train("keep", None, 200, weights)[2]
    assert all(map(torch.equal, gradients, expected))


def test_what_a_swapped_loop_holds_does_not_grow_with_it(weights):
    short, long = (train("swap", 8 * VALUE, n, weights)[0] for n in (80, 240))
    saved = (240 - 80) * 4 * VALUE
    assert long - short < 0.05 * saved  # index tensors of the plan


def test_what_a_recomputed_loop_holds_grows_with_the_root_of_its_length(
    weights, least, monkeypatch
):
    monkeypatch.setattr("penstock.autodiff.bounded.recomputing.LEAST_SEGMENT", VALUE)
    short, long = (train("recompute", None, n, weights)[0] - least for n in (50, 450))
    kept = train("keep", None, 450, weights)[0] - least
    assert long < 4.5 * short  # nine times the length: three times the memory
    assert long < kept / 4


@pytest.mark.parametrize("policy", ["recompute", "auto"])
@pytest.mark.parametrize("budget", [24 * VALUE, 80 * VALUE])
def test_other_policies_stay_inside_their_budget(policy, budget, weights, fixed):
    live, store, gradients = train(policy, budget, 200, weights)
    assert store <= budget + 2 * LAUNCH  # the page of a launch, and the rows that it starts from
    assert live <= fixed + budget + 2 * LAUNCH + ARENAS
    torch.testing.assert_close(gradients, train("keep", None, 200, weights)[2])


def test_nothing_is_held_when_backward_is_over(weights):
    for policy in ("swap", "recompute", "auto"):
        x = torch.randn(ROWS, WIDTH).requires_grad_()
        with bounded_runs() as runs, ps.memory(policy, budget=8 * VALUE):
            y = run(x, 50, weights)
        y.sum().backward()
        store = runs[0].strategy.store
        assert store.bytes == 0
        assert not store._backings
        assert not store._here


def test_rows_at_the_cuts_count_too(weights, fixed):
    """A budget under which segments are one launch long: their rows are folded away."""
    found = {}
    for length in (100, 400):
        with bounded_runs() as runs:
            found[length] = train("recompute", LAUNCH, length, weights)
        assert runs[0].strategy.level > 2
    live, store, gradients = found[400]
    assert store <= 3 * LAUNCH
    assert live <= fixed + 4 * LAUNCH + ARENAS
    assert store < found[100][1] + 3 * VALUE  # they grow with the logarithm
    torch.testing.assert_close(gradients, train("keep", None, 400, weights)[2])


@pytest.mark.parametrize("policy", ["swap", "recompute", "auto"])
def test_inputs_in_a_mapped_file_are_read_where_they_are(policy, weights, tmp_path, monkeypatch):
    """No copy of them is made, and arenas do not grow with them."""
    monkeypatch.setattr(slots, "LARGE", 1 << 12)
    length = 1200
    path = str(tmp_path / "inputs")
    x = torch.from_file(path, shared=True, size=ROWS * length * WIDTH).view(ROWS, length, WIDTH)
    x.normal_(generator=torch.Generator().manual_seed(2))
    bandwidth_of(torch.device("cpu"))  # measured once, with memory of its own

    @ps.function
    def fold(x):
        return ps.foldl(lambda h, row: torch.tanh(h @ weights + row), x, torch.zeros(WIDTH))

    with ps.memory(policy, budget=4 * LAUNCH), LiveBytes() as live:
        y = fold.map(x, out="stack")
    assert live.peak < 1.3 * x.nbytes  # it is counted as well
    weight = torch.arange(1.0, WIDTH + 1)
    (found,) = torch.autograd.grad((y * weight).sum(), [weights])
    (expected,) = torch.autograd.grad((fold.map(x, out="stack") * weight).sum(), [weights])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("policy", ["swap", "recompute", "auto"])
def test_memory_does_not_grow_with_inputs_that_need_no_gradients(policy, weights, monkeypatch):
    """Large rows: arenas begin small, and gradients have no room for those of inputs."""
    row = ROWS * WIDTH
    monkeypatch.setattr(slots, "LARGE", 16 * row)
    monkeypatch.setattr(leading_slots, "LARGE", 16 * row)

    @ps.function
    def fold(x):
        return ps.foldl(lambda h, row: torch.tanh(h @ weights + row), x, torch.zeros(ROWS, WIDTH))

    def train(length, policy="keep", budget=None):
        x = torch.randn(length, ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
        with LiveBytes() as live, ps.memory(policy, budget=budget):
            y = fold(x)
            loss = (y * torch.arange(1.0, WIDTH + 1)).sum()
            del y
            gradients = torch.autograd.grad(loss, [weights])
        inputs = x.nbytes if live.peak > x.nbytes else 0  # seen when they are looked at
        return live.peak - inputs, gradients

    train(60)
    short, _ = train(60, policy, 8 * LAUNCH)
    long, found = train(600, policy, 8 * LAUNCH)
    assert long < 1.2 * short + 64 * VALUE
    torch.testing.assert_close(found, train(600)[1])


def test_gradients_that_reach_slots_of_inputs_have_room_there(weights, monkeypatch):
    """A value is an input in some rows and computed in others, and only one input is asked for."""
    monkeypatch.setattr(leading_slots, "LARGE", 0)

    @ps.function
    def chosen(x, n, h):
        start = ps.cond(n > 0, lambda: x, lambda: h)
        return ps.while_loop(
            lambda k, h: k < n, lambda k, h: (k + 1, torch.tanh(h @ weights)), (0, start)
        )[1]

    generator = torch.Generator().manual_seed(3)
    x, h = (torch.randn(3, WIDTH, generator=generator) for _ in range(2))
    h.requires_grad_()
    factors = torch.arange(1.0, 3 * WIDTH + 1).view(3, WIDTH)
    y = chosen.map(x, [0, 2, 0], h, out="stack")
    found = torch.autograd.grad((y * factors).sum(), [h, weights])
    y = torch.stack([h[0], torch.tanh(torch.tanh(x[1] @ weights) @ weights), h[2]])
    torch.testing.assert_close(found, torch.autograd.grad((y * factors).sum(), [h, weights]))
