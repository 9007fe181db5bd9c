"""Fresh plans in templates: nobody can tell by results. Templates here run anew, without graphs."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.data import random_binary_trees
from penstock.run.executable import Executable
from penstock.run.templates.choice import STREAK
from penstock.run.templates.template import Template
from tests.fused import poured_without_graphs

DOUBLE = torch.float64


class Encoder(nn.Module):
    """A recursion over binary trees, with a weight that is computed of another."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.join = nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(6))

    @ps.function
    def forward(self, tree):
        return self.encode(tree, tree.root)[0]

    @ps.function
    def encode(self, tree, i):
        if tree.is_leaf(i):
            h = self.table(tree.token[i])
            return h, h * 0.5
        h, c = self.encode(tree, tree.left(i))
        k, d = self.encode(tree, tree.right(i))
        gate, new = self.join(torch.cat((h, k))).chunk(2)
        c = torch.sigmoid(gate) * (c + d) + torch.tanh(new)
        return torch.tanh(c) * torch.tanh(self.scale), c


@pytest.fixture(autouse=True)
def poured() -> Iterator[None]:
    with poured_without_graphs():
        yield


@pytest.fixture
def pours(monkeypatch) -> list[int]:
    """The stages of every plan that was poured."""
    counts: list[int] = []
    pour = Template.pour

    def count(self, run, plan, *rest):
        counts.append(len(plan.stages))
        pour(self, run, plan, *rest)

    monkeypatch.setattr(Template, "pour", count)
    return counts


class Twin:
    """A model that is poured, and one that is run plainly."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Encoder().to(DOUBLE)
        self.plain = copy.deepcopy(self.model)

    def check(self, run) -> None:
        """Both give the same."""
        found = run(self.model)
        with ps.set_fusion("never"):
            torch.testing.assert_close(found, run(self.plain))


@pytest.fixture
def twin() -> Twin:
    return Twin()


def trees(seed: int, count: int = 5):
    return random_binary_trees(count, seed=seed, leaves=(2, 9), vocabulary=50)


def gradients(batch, **options):
    def run(model):
        loss = model.forward.map(batch, out="stack").square().sum()
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), **options)]

    return run


def test_fresh_plans_give_the_same_values_and_gradients(twin, pours):
    for seed in range(8):
        twin.check(gradients(trees(seed)))
    assert len(pours) == 8


def test_values_are_the_same_without_gradients(twin, pours):
    with torch.no_grad():
        for seed in range(4):
            twin.check(lambda model, seed=seed: model.forward.map(trees(seed), out="stack"))
    assert len(pours) == 4


def test_plans_of_other_sizes_have_templates_of_their_own(twin, pours):
    for seed, count in enumerate([1, 9, 1, 9]):
        twin.check(gradients(trees(seed, count)))
    assert len(pours) == 4


def test_a_run_that_has_not_gone_backward_keeps_its_template(twin, pours):
    def run(model):
        first, second = (model.forward.map(trees(k), out="stack").sum() for k in range(2))
        leaves = list(model.parameters())
        return [torch.autograd.grad(loss, leaves) for loss in (first, second)]

    twin.check(run)
    assert len(pours) == 1


def test_some_instances_may_go_backward_before_others(twin):
    def run(model):
        rows = model.forward.map(trees(3))
        return [torch.autograd.grad(row.sum(), model.join.weight)[0] for row in rows]

    twin.check(run)


def test_a_graph_may_be_retained_and_is_used_up_by_a_last_pass(twin):
    leaves = list(twin.model.parameters())
    loss = twin.model.forward.map(trees(4), out="stack").square().sum()
    kept = torch.autograd.grad(loss, leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), kept)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, leaves)


def test_a_graph_that_went_back_as_a_whole_is_used_up(twin):
    loss = twin.model.forward.map(trees(4), out="stack").square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_gradients_of_gradients_are_the_same(twin):
    def run(model):
        leaves = list(model.parameters())
        loss = model.forward.map(trees(5), out="stack").square().sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    twin.check(run)


def test_a_weight_that_was_changed_since_is_torchs_error(twin):
    loss = twin.model.forward.map(trees(6), out="stack").sum()
    with torch.no_grad():
        twin.model.join.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_that_backward_does_not_read_may_change(pours):
    w, b = (torch.ones(3, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    f = ps.function(lambda x: torch.tanh(x * w) + b)
    out = f.map(torch.ones(4, 3, dtype=DOUBLE), out="stack")
    with torch.no_grad():
        b.mul_(2)
    out.sum().backward()
    assert pours == [1]


def test_a_weight_and_its_conjugate_are_two(pours):
    w = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
    f = ps.function(lambda x, w: x * w)
    x = torch.ones(3, 2, dtype=torch.complex128)
    for weight in (w, w.conj(), w):
        torch.testing.assert_close(f.map(x, ps.shared(weight), out="stack"), x * weight)
    assert len(pours) == 3


def test_a_bad_batch_does_not_end_pouring(twin, pours):
    bad = random_binary_trees(5, seed=9, leaves=(2, 9), vocabulary=5000)
    with pytest.raises(IndexError):
        twin.model.forward.map(bad, out="stack")
    twin.check(gradients(trees(1)))
    assert pours


def test_a_pass_the_plain_way_lets_go_when_all_is_used_up(twin, pours):
    losses = [row.sum() for row in twin.model.forward.map(trees(1))]
    for loss in losses:
        loss.backward()
    twin.check(gradients(trees(2)))
    assert len(pours) == 2


def test_weights_are_read_anew_where_they_are(twin):
    for seed in range(3):
        twin.check(gradients(trees(seed)))
        for model in (twin.model, twin.plain):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(0.1)
    for model in (twin.model, twin.plain):
        model.scale = nn.Parameter(model.scale.detach() * 2)
    twin.check(gradients(trees(7)))


def test_a_plan_that_comes_again_is_not_made_again(twin, pours, monkeypatch):
    made = []
    new_planner = Executable.new_planner
    monkeypatch.setattr(
        Executable, "new_planner", lambda self, *rest: made.append(self) or new_planner(self, *rest)
    )
    for seed in (0, 1) * 3:
        gradients(trees(seed))(twin.model)
    assert (len(made), len(pours)) == (2, 6)


def test_a_plan_that_always_comes_is_kept_for_itself(twin, pours):
    for _ in range(STREAK + 2):
        twin.check(gradients(trees(2)))
    assert len(pours) == STREAK


def test_inputs_have_gradients_or_none(pours):
    @ps.function
    def power(x, w, n):
        return ps.cond(n > 0, lambda: power(torch.tanh(x * w), w, n - 1), lambda: x)

    w = torch.tensor([0.3, 0.9], dtype=DOUBLE, requires_grad=True)
    for seed, counts in enumerate([[2, 0, 3], [1, 4, 1], [0, 2, 2]]):
        torch.manual_seed(seed)
        rows = [torch.randn(2, dtype=DOUBLE, requires_grad=True) for _ in counts]
        out = power.map(rows, ps.shared(w), counts)
        found = torch.autograd.grad(sum(y.sum() for y in out), [*rows, w])
        with ps.set_eager(True):
            plain = [power(x, w, n) for x, n in zip(rows, counts, strict=True)]
        expected = torch.autograd.grad(sum(y.sum() for y in plain), [*rows, w])
        torch.testing.assert_close(found, expected)
    assert len(pours) == 3


def test_rows_that_are_left_over_count_nothing_where_zeros_are_no_numbers(pours):
    """The logarithm of a row that is nobody's is infinite, and zero times that is no number."""

    @ps.function
    def f(x, w, n):
        return ps.cond(n > 0, lambda: f(torch.log(x * w) ** 2 + 1, w, n - 1), lambda: x)

    w = torch.tensor([1.5, 2.5], dtype=DOUBLE, requires_grad=True)
    for counts in ([3, 1], [1, 1], [2, 3]):
        x = torch.tensor([[2.0, 3.0], [4.0, 5.0]], dtype=DOUBLE)
        loss = f.map(x, ps.shared(w), counts, out="stack").sum()
        (found,) = torch.autograd.grad(loss, w)
        with ps.set_eager(True):
            plain = sum(f(x[k], w, n).sum() for k, n in enumerate(counts))
        torch.testing.assert_close(found, torch.autograd.grad(plain, w)[0])
    assert len(pours) == 3


def test_a_profile_sees_launches(twin, pours):
    with ps.profile() as run:
        twin.model.forward.map(trees(1), out="stack").sum().backward()
    assert not pours
    assert run.launches
