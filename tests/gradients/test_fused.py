"""Backward passes of whole launches: what they owe to the one plan that many calls share."""

from collections.abc import Iterator
from itertools import count

import pytest
import torch

import penstock as ps
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written
from tests.fused import fused_without_compiler

POLICIES = [("keep", None), ("swap", 0), ("recompute", 600), ("auto", None)]


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    with fused_without_compiler():
        yield


def test_what_asks_for_gradients_may_change_to_and_fro():
    @ps.function
    def f(x, w):
        return (x @ w).tanh() * x

    rows, weight = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    scale = torch.randn(4, 3, dtype=torch.float64)
    for asks in [(True, True), (True, False), (False, True)] * 2:
        x, w = (t.clone().requires_grad_(ask) for t, ask in zip((rows, weight), asks, strict=True))
        targets = [t for t in (x, w) if t.requires_grad]
        loss = (f.map(x, ps.shared(w), out="stack") * scale).sum()
        plain = (((x @ w).tanh() * x) * scale).sum()
        torch.testing.assert_close(
            torch.autograd.grad(loss, targets), torch.autograd.grad(plain, targets)
        )


def test_a_graph_whose_plan_is_not_kept_is_used_up_with_torchs_error():
    w = torch.tensor([0.4, 0.7], requires_grad=True)

    @ps.function
    def shrink(x):
        return ps.while_loop(lambda x: x.norm() > 0.3, lambda x: ((x * w).tanh(),), (x,))[0]

    loss = torch.stack(shrink.map(torch.tensor([[1.0, 2.0], [0.5, 0.1]]))).sum()
    kept = torch.autograd.grad(loss, w, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, w), kept)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, w)


def new_alternation():
    """Both carried values are read in each branch and behind it, so their gradients are merged."""

    @ps.function
    def alternate(x, n, w):
        def step(k, a, b):
            c = ps.cond(
                k % 2 == 0,
                lambda: torch.tanh(a @ w) * torch.cos(b),
                lambda: torch.sin(a) * torch.sigmoid(b @ w),
            )
            return k + 1, c * torch.sigmoid(a) + b, torch.sin(c) * b + a

        return ps.while_loop(lambda k, a, b: k < n, step, (0, x, x * x))[1]

    return alternate


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("calls", [2, 4])
@pytest.mark.parametrize(("policy", "budget"), POLICIES)
def test_code_that_fails_once_it_has_merged_a_gradient_is_not_done_again(
    policy, budget, calls, at, monkeypatch
):
    """After the fourth call halves are called in a row."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64, generator=draw).requires_grad_()
    w = torch.randn(6, 6, dtype=torch.float64, generator=draw).mul_(0.5).requires_grad_()
    program = new_alternation()

    def loss():
        with ps.memory(policy, budget=budget):
            rows = program.map(x, [3, 5, 4, 2], ps.shared(w))
        return sum(row.square().sum() for row in rows)

    for _ in range(calls):
        expected = torch.autograd.grad(loss(), [x, w])
    put, merges = Written.put, count(1)

    def failing(self, values, tensors):
        put(self, values, tensors)
        if self.is_merged and next(merges) == at:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B")

    made = loss()
    with monkeypatch.context() as patch:
        patch.setattr(Written, "put", failing)
        with pytest.raises(RuntimeError, match="can't allocate") as found:
            torch.autograd.grad(made, [x, w], retain_graph=calls == 2)
    assert next(merges) > at
    assert any(".backward, " in note for note in found.value.__notes__)
    again = made if calls == 2 else loss()
    torch.testing.assert_close(torch.autograd.grad(again, [x, w]), expected)


@pytest.mark.parametrize(
    ("result", "is_taken", "is_repeatable"),
    [
        ({}, False, True),
        ({"is_added": True}, False, False),
        ({"is_merged": True}, False, False),
        ({}, True, False),
    ],
)
def test_code_that_changes_what_it_reads_is_not_repeatable(result, is_taken, is_repeatable):
    cpu = torch.device("cpu")
    part = Part(Origin.GATHERED, torch.float32, (4,), cpu, is_taken=is_taken)
    written = Written(torch.float32, (4,), cpu, **result)
    code = LaunchCode(lambda rows, values: (values,), (part,), (written, None))
    assert code.is_repeatable is is_repeatable
