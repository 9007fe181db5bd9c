"""A call whose plan is known gives the values and gradients of one that is planned, to the bit."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from penstock.autodiff.reverse import Reversal
from penstock.calls.structure import flatten
from penstock.plan.limits import limits
from penstock.plan.machine import Machine
from tests.semantics.agreement import ask_for_gradients, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import run_graph, run_map


def assert_same(left, right) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def machines(monkeypatch):
    """The machines that were made."""
    made: list[Machine] = []
    original = Machine.__init__

    def init(self, *args, **kwargs):
        made.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(Machine, "__init__", init)
    return made


@pytest.fixture
def ways(monkeypatch):
    """For each backward pass whether it went on a known way."""
    found: list[bool] = []
    for name in ("run", "run_again"):
        original = getattr(Reversal, name)

        def patched(self, *args, name=name, original=original):
            found.append(name == "run_again")
            return original(self, *args)

        monkeypatch.setattr(Reversal, name, patched)
    return found


CALLS = [
    (name, run)
    for name, program in PROGRAMS.items()
    for run in ((run_map, run_graph) if program.differentiable else (run_map,))
]


@pytest.mark.parametrize(("name", "run"), CALLS)
def test_values_and_gradients_of_a_known_plan_are_the_same(name, run):
    program = PROGRAMS[name]
    case = program.case(program.dtypes[0])
    if run is run_map:
        with torch.no_grad():
            first, second = (seeded(run, case) for _ in range(2))
        assert_same(flatten(second)[0], flatten(first)[0])
    if program.differentiable:
        is_double = program.dtypes[0] == torch.float64
        assert_same_gradients(case if is_double else program.case(torch.float64), run)


def seeded(run, case):
    torch.manual_seed(1)
    return run(case)


def assert_same_gradients(case, run):
    """Of the first call that asks for gradients, and of two that know its plan."""
    ask_for_gradients(case)
    with limits(admitted_rows=(1 << 14) - 3):  # no plan of a call without gradients serves
        found = [gradients(case, seeded(run, case)) for _ in range(3)]
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for path, grad in found[0].items():
            if grad is None:
                assert other[path] is None, path
            else:
                assert_same(other[path], grad)


class Chain(torch.nn.Module):
    """Applies a cell n times, to a state and a sequence of inputs."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.Linear(3, 3, dtype=torch.float64)

    @ps.function
    def forward(self, x, n):
        def step(k, h):
            return (k + 1, torch.tanh(self.cell(h) + x[k]))

        last = ps.while_loop(lambda k, h: k < n, step, (0, x[0]))[1]
        return last, last.exp().sum()


def columns(*lengths):
    made = [torch.randn(length, 3, dtype=torch.float64, requires_grad=True) for length in lengths]
    return made, list(lengths)


def losses(outputs):
    weights = torch.arange(1.0, 4.0, dtype=torch.float64)
    return [last @ weights + score for last, score in outputs]


def test_known_plans_and_ways_are_used_and_forget_no_data(machines, ways):
    model = Chain()
    for _ in range(3):
        xs, ns = columns(2, 4, 3)
        sum(losses(model.forward.map(xs, ns))).backward()
        single = [x.detach().clone().requires_grad_() for x in xs]
        expected = [torch.autograd.grad(losses([model(x, n)])[0], x)[0] for x, n in zip(single, ns)]
        torch.testing.assert_close([x.grad for x in xs], expected)
    assert len(machines) == 1 + 3  # one for the map, one for each length called alone
    assert ways == [False, *[False] * 3, *[True] * 8]


def test_weights_that_were_changed_are_seen(machines):
    model = Chain()
    xs, ns = columns(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = sum(losses(model.forward.map(xs, ns)))
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert seen[0] > seen[1] > seen[2]
    assert len(machines) == 1


def test_second_order_gradients_go_through_a_known_plan(machines):
    model = Chain()
    found = []
    torch.manual_seed(0)
    xs, ns = columns(3, 2)
    for _ in range(2):
        loss = sum(losses(model.forward.map(xs, ns)))
        first = torch.autograd.grad(loss, xs, create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), xs))
    assert_same(found[1], found[0])
    assert any(grad.abs().sum() > 0 for grad in found[0])
    assert len(machines) == 1


def test_cotangents_of_other_outputs_take_another_way(ways):
    model = Chain()
    xs, ns = columns(3, 2, 4)
    expected = torch.autograd.grad(sum(losses(model.forward.map(xs, ns))), xs)
    for _ in range(2):
        outputs = model.forward.map(xs, ns)
        (only,) = torch.autograd.grad(outputs[1][1], xs[1])
        (rest,) = torch.autograd.grad(losses(outputs)[2], xs[2])
        assert_same(rest, expected[2])
        assert only.shape == xs[1].shape
        assert torch.autograd.grad(outputs[0][1], xs[1], allow_unused=True) == (None,)
    for loss in losses(model.forward.map(xs, ns)):
        loss.backward()
    assert_same([x.grad for x in xs], list(expected))


def test_a_graph_is_used_up_on_a_known_way_as_well():
    model = Chain()
    for _ in range(3):
        xs, ns = columns(3, 2)
        loss = sum(losses(model.forward.map(xs, ns)))
        kept = torch.autograd.grad(loss, xs, retain_graph=True)
        assert_same(torch.autograd.grad(loss, xs), kept)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(loss, xs)


def test_what_asks_for_gradients_may_change_from_call_to_call(machines):
    model = Chain()
    torch.manual_seed(0)
    xs, ns = columns(3, 2)
    weights = list(model.parameters())
    everything = torch.autograd.grad(sum(losses(model.forward.map(xs, ns))), [*xs, *weights])
    plain = [x.detach() for x in xs]
    some = torch.autograd.grad(sum(losses(model.forward.map(plain, ns))), weights)
    model.requires_grad_(False)
    others = torch.autograd.grad(sum(losses(model.forward.map(xs, ns))), xs)
    assert_same([*others, *some], list(everything))
    assert len(machines) == 1


def test_a_nan_is_found_on_a_known_way():
    @ps.function
    def root(x, n):
        def step(k, h):
            return (k + 1, (h - 1).sqrt() + 1)

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    for _ in range(2):
        x = torch.tensor([4.0, 1.0, 9.0], requires_grad=True)
        with ps.profile(check_nan=True):
            result = root.map(x, [1, 1, 1], out="stack")
        with pytest.raises(ps.errors.NanError, match=r"instance\s+1"):
            (result * torch.tensor([1.0, 0.0, 1.0])).sum().backward()


def test_a_plan_made_in_inference_mode_serves_training(machines):
    @ps.function
    def scaled(x, n):
        def step(k, h):
            return k + 1, torch.tanh(h * (k * 0.5) + x)

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        first = scaled.map(x, [1, 2, 3], out="stack")
    second = scaled.map(x, [1, 2, 3], out="stack")
    torch.testing.assert_close(second, first)
    (grad,) = torch.autograd.grad(second.sum(), x, create_graph=True)
    torch.autograd.grad(grad.square().sum(), x)
    assert len(machines) == 1
    assert torch.autograd.gradcheck(lambda x: scaled.map(x, [1, 2, 3], out="stack"), x)
