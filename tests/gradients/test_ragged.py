"""Gradients through rows of different sizes that run together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import penstock as ps
from penstock.errors import NanError
from penstock.plan.plan_cache import BoundedPlans

LENGTHS = (3, 7, 1, 5)


def attend(memory, h):
    return torch.softmax(torch.tanh(memory + h) @ h, 0) @ memory


def operands():
    torch.manual_seed(0)
    memories = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in LENGTHS]
    states = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in LENGTHS]
    return memories, states


def padded_launches(run):
    return [launch for launch in run.launches if launch.padding is not None]


def test_gradients_of_gradients_agree():
    def second(results, given):
        total = sum((result**3).sum() for result in results)
        first = torch.autograd.grad(total, given, create_graph=True)
        return torch.autograd.grad(sum((grad**2).sum() for grad in first), given)

    memories, states = operands()
    given = [*memories, *states]
    expected = second([attend(*row) for row in zip(memories, states, strict=True)], given)
    with ps.profile() as run:
        results = ps.function(attend).map(memories, states)
    assert padded_launches(run)
    for mine, one in zip(second(results, given), expected, strict=True):
        torch.testing.assert_close(mine, one)


def test_each_instance_can_go_backward_by_itself():
    memories, states = operands()
    losses = [result.sum() for result in ps.function(attend).map(memories, states)]
    for loss in losses:
        loss.backward()
    for memory, h in zip(memories, states, strict=True):
        expected = torch.autograd.grad(attend(memory, h).sum(), [memory, h])
        torch.testing.assert_close([memory.grad, h.grad], list(expected))


@pytest.mark.parametrize("plans", ["found", "made"])
def test_a_plan_with_padded_rows_serves_other_values(plans, monkeypatch):
    if plans == "made":
        monkeypatch.setattr(BoundedPlans, "find", lambda plans, key: None)
    program = ps.function(attend)
    for _ in range(3):
        memories, states = operands()
        with torch.no_grad():
            for memory in memories:
                memory += torch.randn_like(memory)
        results = program.map(memories, states)
        grads = torch.autograd.grad(sum(r.sum() for r in results), memories)
        for memory, h, grad in zip(memories, states, grads, strict=True):
            torch.testing.assert_close(
                grad, torch.autograd.grad(attend(memory, h).sum(), memory)[0]
            )


def test_padding_leaves_no_trace_in_the_gradients_of_weights():
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def entropy(x):  # logarithms and quotients of padding would not be finite
        shares = (x @ weight).abs()
        shares = shares / shares.sum(0)
        return -(shares * shares.log()).sum()

    memories, _ = operands()
    expected = torch.autograd.grad(sum(entropy(x) for x in memories), weight)
    actual = torch.autograd.grad(sum(ps.function(entropy).map(memories)), weight)
    torch.testing.assert_close(actual, expected)


def test_an_infinite_factor_does_not_reach_beyond_the_end():
    def scaled(x, s):
        weights = torch.softmax(x, 0) * s
        return weights.sum(0), x.T @ weights, (x @ (x.sum(0) * s)).sum()

    memories = [memory.detach().abs() for memory in operands()[0]]
    scales = [torch.tensor(value, dtype=torch.float64) for value in (1, float("inf"), 2, 0.5)]
    with ps.profile() as run:
        results = ps.function(scaled).map(memories, scales)
    assert padded_launches(run)
    expected = [scaled(*row) for row in zip(memories, scales, strict=True)]
    torch.testing.assert_close(results, expected)


def test_a_source_that_is_read_at_every_step_gets_all_its_gradients():
    @ps.function
    def decode(memory, h, steps):
        return ps.while_loop(
            lambda t, h: t < steps, lambda t, h: (t + 1, attend(memory, h)), (0, h)
        )[1]

    memories, states = operands()
    results = decode.map(memories, states, ps.shared(6))
    grads = torch.autograd.grad(sum(r.sum() for r in results), memories)
    for memory, h, grad in zip(memories, states, grads, strict=True):
        for _ in range(6):
            h = attend(memory, h)
        torch.testing.assert_close(grad, torch.autograd.grad(h.sum(), memory)[0])


def test_a_nan_in_a_padded_launch_is_placed():
    def root(x):
        return torch.softmax(x, 0).sum() + x.sqrt().sum()

    xs = [torch.ones(3), torch.tensor([1.0, -1.0]), torch.ones(4)]
    with (
        pytest.raises(NanError, match=r"(?s)test_ragged\.py.*instance +1"),
        ps.profile(check_nan=True),
    ):
        ps.function(root).map(xs)


def test_an_error_in_a_padded_launch_names_the_instance():
    table = torch.randn(4, 2)

    def look_up(tokens):
        return F.embedding(tokens, table).cumsum(0).softmax(0).sum()

    tokens = [torch.tensor([0, 1, 2]), torch.tensor([1, 9]), torch.tensor([3])]
    with pytest.raises(IndexError) as caught:
        ps.function(look_up).map(tokens)
    assert any("instance 1" in note for note in caught.value.__notes__)
