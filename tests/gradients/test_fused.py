"""Backward passes of whole launches: what they owe to the one plan that many calls share."""

from collections.abc import Iterator

import pytest
import torch

import penstock as ps
from tests.fused import fused_without_compiler


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
