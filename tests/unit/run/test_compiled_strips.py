"""Strips of launches that are compiled for real."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import penstock as ps
from penstock.plan.planners import planning
from penstock.run.fused import inductor
from penstock.run.kept_plans import KeptPlans
from tests.strips import REASON, has_strips, noted_strips

pytestmark = pytest.mark.skipif(
    not inductor.has_compiler(torch.device("cpu")) or not has_strips(), reason=REASON
)


@pytest.fixture(autouse=True)
def strips() -> Iterator[None]:
    """At least one launch of every test is run by native code."""
    fresh = patch.object(KeptPlans, "is_worth_keeping", lambda plans, key: False)
    with ps.set_fusion("always"), planning("always"), fresh, noted_strips() as noted:
        yield
        assert noted


class Climber(nn.Module):
    """A leaf is embedded, and goes through the same layer some times."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, size, dtype=dtype)
        self.linear = nn.Linear(size, size, dtype=dtype)

    @ps.function
    def forward(self, token, n):
        def inner():
            return torch.tanh(self.linear(self.forward(token, n - 1)))

        return ps.cond(n > 0, inner, lambda: self.embedding(token))

    def plain(self, token: int, n: int) -> Tensor:
        made = self.embedding.weight[token]
        for _ in range(n):
            made = torch.tanh(self.linear(made))
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [5, 20])
def test_values_and_gradients_are_those_of_plain_python(size, dtype):
    torch.manual_seed(0)
    model, counts = Climber(size, dtype), [1, 2, 3, 0, 1, 1]
    tokens, scale = torch.arange(6), torch.randn(6, size, dtype=dtype)
    expected = torch.stack([model.plain(k, n) for k, n in enumerate(counts)])
    weights = tuple(model.parameters())
    grads = torch.autograd.grad((expected * scale).sum(), weights)
    for _ in range(3):
        found = model.forward.map(tokens, counts, out="stack")
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad((found * scale).sum(), weights), grads)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_an_index_out_of_range_is_told_as_without_strips(with_gradients):
    model = Climber(5, torch.float32).requires_grad_(with_gradients)
    good, bad, counts = torch.tensor([1, 2, 3]), torch.tensor([1, 20, 3]), [1, 2, 3]

    def told() -> str:
        with pytest.raises(IndexError) as caught:
            model.forward.map(bad, counts)
        return "\n".join([str(caught.value), *caught.value.__notes__])

    with ps.set_fusion("never"):
        expected = told()
    assert "20" in expected or "instance" in expected
    for _ in range(2):
        model.forward.map(good, counts)
    with noted_strips() as noted:
        assert told() == expected
        found = model.forward.map(good, counts)
    assert noted
    torch.testing.assert_close(found, [model.plain(k, k) for k in counts])
