"""Wide launches run in pieces under a budget: it holds, and gradients are those of whole ones."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.autodiff.bounded.strategies import PARTS
from penstock.autodiff.page import Page
from penstock.data import random_binary_trees
from penstock.errors import SpillError
from penstock.nn import BinaryTreeLSTM
from penstock.run.memory import spill_file
from penstock.run.memory import store as store_module
from penstock.run.runner import Runner
from tests.fused import fused_without_compiler
from tests.gradients.bounded.runs import bounded_runs

HIDDEN = 8
KIB = 1 << 10

#: About a tenth of what is saved, and less than the page of the leaves.
BUDGET = 24 * KIB

by_policy = pytest.mark.parametrize("policy", ["swap", "recompute", "auto"])


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    """Swapped bytes are checked."""
    monkeypatch.setattr(store_module, "CHECKS", True)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BinaryTreeLSTM(nn.Embedding(5000, HIDDEN), HIDDEN)


def trees_of(vocabulary=5000, count=6):
    return random_binary_trees(count, leaves=(60, 60), vocabulary=vocabulary, seed=0)


def roots(model, policy="keep", budget=None, trees=None):
    with ps.memory(policy, budget=budget):
        return model.forward.map(trees or trees_of(), out="stack")


def scalar(rows):
    return (rows * torch.linspace(-1, 1, rows.numel()).view_as(rows)).sum()


def gradients(model, rows, **options):
    return torch.autograd.grad(scalar(rows), list(model.parameters()), **options)


def pages_of(run):
    return [entry for entry in run.tape.entries if isinstance(entry, Page)]


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@by_policy
@pytest.mark.parametrize("vocabulary", [5000, 40])
def test_wide_launches_stay_inside_a_budget(policy, vocabulary, model):
    """With few words leaves are computed once for each word, however many there are."""
    trees = trees_of(vocabulary)
    whole = roots(model, trees=trees)
    for _ in range(4):  # `auto` knows earlier calls
        with bounded_runs() as runs:
            found = roots(model, policy, BUDGET, trees)
        assert_near(found, whole)
        assert_near(gradients(model, found), gradients(model, roots(model, trees=trees)))
        store = runs[0].strategy.store
        assert 0 < store.peak <= BUDGET
        assert store.bytes == 0


def test_pieces_are_as_wide_as_the_budget_allows(model):
    widths = {}
    for budget in (BUDGET, 2 * BUDGET):
        with bounded_runs() as runs:
            roots(model, "swap", budget)
            roots(model, "swap", budget)
        first, second = (Counter(page.rows for page in pages_of(run)) for run in runs)
        assert first == second
        widths[budget] = max(first)
        size = max(sum(each.nbytes for each in page.saved) for page in pages_of(runs[0]))
        assert size <= budget // PARTS
    assert widths[2 * BUDGET] > 1.5 * widths[BUDGET]


def test_launches_that_fit_are_not_divided(model):
    with bounded_runs() as runs:
        gradients(model, roots(model, "swap", 1 << 30))
        gradients(model, roots(model, "recompute"))
    assert all(not run.divided for run in runs)
    assert max(page.rows for page in pages_of(runs[0])) == 6 * 60


@by_policy
def test_a_kept_plan_serves_runs_with_and_without_pieces(policy, model):
    expected = gradients(model, roots(model))
    for budget in (None, BUDGET, BUDGET, None, 3 * BUDGET, BUDGET, None, BUDGET):
        chosen = "keep" if budget is None else policy
        assert_near(gradients(model, roots(model, chosen, budget)), expected)


@by_policy
def test_pieces_of_compiled_launches(policy, model):
    expected = gradients(model, roots(model))
    with fused_without_compiler():
        for _ in range(3):
            assert_near(gradients(model, roots(model, policy, BUDGET)), expected)


@by_policy
def test_a_retained_graph_can_be_gone_through_again(policy, model):
    expected = gradients(model, roots(model))
    found = roots(model, policy, BUDGET)
    for _ in range(2):
        assert_near(gradients(model, found, retain_graph=True), expected)
    assert_near(gradients(model, found), expected)


@by_policy
def test_instances_go_backward_one_after_the_other(policy, model):
    expected = gradients(model, roots(model))
    found = roots(model, policy, BUDGET)
    factors = torch.linspace(-1, 1, found.numel()).view_as(found)
    parameters = list(model.parameters())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for row, factor in zip(found, factors, strict=True):
        parts = torch.autograd.grad((row * factor).sum(), parameters, retain_graph=True)
        for total, part in zip(sums, parts, strict=True):
            total += part
    assert_near(sums, list(expected))


@by_policy
def test_gradients_of_gradients(policy, model):
    model.double()
    parameters = list(model.parameters())[1:]
    found = []
    for chosen, budget in (("keep", None), (policy, BUDGET)):
        rows = roots(model, chosen, budget, trees_of(count=2))
        first = torch.autograd.grad(scalar(rows), parameters, create_graph=True)
        penalty = sum((each * each).sum() for each in first)
        found.append(torch.autograd.grad(penalty, parameters))
    torch.testing.assert_close(found[1], found[0])


@by_policy
def test_unchanged_eager_code(policy):
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(HIDDEN, HIDDEN, generator=generator).mul_(0.4).requires_grad_()
    x = torch.randn(400, HIDDEN, generator=generator)

    def step(row):
        for _ in range(6):
            row = torch.tanh(row @ w) * torch.sigmoid(row)
        return row

    def train(chosen, budget):
        with bounded_runs() as runs, ps.memory(chosen, budget=budget):
            rows = torch.stack(ps.map(step, list(x)))
        return runs, torch.autograd.grad(scalar(rows), w)

    (run,), found = train(policy, BUDGET)
    assert run.divided
    assert run.strategy.store.peak <= BUDGET
    assert_near(found, train("keep", None)[1])


@by_policy
def test_random_draws_are_those_of_whole_launches(policy):
    w = torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1)).requires_grad_()

    @ps.function
    def noisy(x):
        for _ in range(4):
            x = torch.tanh(nn.functional.dropout(x @ w, 0.3)) + torch.rand_like(x)
        return x

    def train(chosen, budget):
        torch.manual_seed(7)
        with bounded_runs() as runs, ps.memory(chosen, budget=budget):
            rows = noisy.map(torch.ones(300, HIDDEN), out="stack")
        assert all(run.divided for run in runs)
        return rows, *torch.autograd.grad(scalar(rows), w)

    assert_near(train(policy, 16 * KIB), train("keep", None))


@by_policy
def test_an_error_between_pieces_leaves_nothing(policy, model, monkeypatch):
    expected = gradients(model, roots(model))
    original, count = Runner._step, 0

    def fail(self, step):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return original(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_step", fail)
        with bounded_runs() as runs, pytest.raises(KeyboardInterrupt):
            roots(model, policy, BUDGET)
    assert len(runs[0].tape.entries) == 4
    runs.clear()
    gc.collect()
    assert_near(gradients(model, roots(model, policy, BUDGET)), expected)


@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_a_full_disk_between_pieces_leaves_nothing(at_once, model, monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", at_once)
    expected = gradients(model, roots(model))
    write, count = spill_file._write, 0

    def fail(*arguments):
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(spill_file, "_write", fail)
        with pytest.raises(SpillError, match="could not be written"):
            gradients(model, roots(model, "swap", BUDGET))
    assert_near(gradients(model, roots(model, "swap", BUDGET)), expected)


def test_an_allocation_that_fails_for_a_piece_is_tried_again_for_it_alone(model, monkeypatch):
    expected = gradients(model, roots(model))
    original, count = Runner._step, 0

    def fail(self, step):
        nonlocal count
        count += 1
        if count == 4:
            raise torch.OutOfMemoryError("out of memory")
        return original(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_step", fail)
        with bounded_runs() as runs:
            found = roots(model, "swap", BUDGET)
    launched = sum(page.rows for page in pages_of(runs[0]))
    assert launched == 6 * (60 + 59)
    assert_near(gradients(model, found), expected)


def test_an_error_in_a_piece_names_the_instance():
    words = torch.randn(9, 32).requires_grad_()

    @ps.function
    def look_up(number):
        return torch.tanh(words[number])

    numbers = [0] * 300
    numbers[250] = 11
    told = []
    for chosen, budget in (("keep", None), ("swap", 4 * KIB)):
        scope = ps.memory(chosen, budget=budget)
        with (
            bounded_runs() as runs,
            scope,
            pytest.raises(IndexError, match="bounds") as found,
        ):
            look_up.map(numbers)
        told.append((type(found.value), str(found.value), found.value.__notes__))
    assert runs[0].divided
    assert told[0] == told[1]
    assert "250" in str(told[1][2])
