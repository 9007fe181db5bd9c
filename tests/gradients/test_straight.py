"""Kept plans run in a row after some calls: nothing else may change with it."""

from collections.abc import Iterator

import pytest
import torch

import penstock as ps
from penstock.autodiff.straight_way import StraightWay
from penstock.run.straight import StraightWindow
from tests.fused import fused_without_compiler

#: Calls after which a plan has run in a row for a while.
CALLS = 6

weight = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
starts = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
counts = [0, 2, 5]


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    with fused_without_compiler():
        yield


def new_program(w: torch.Tensor) -> ps.Function:
    """Reads x in every call, so that gradients are added to its slot, and each result twice."""

    @ps.function
    def walk(x, n):
        def inner():
            below = walk(x, n - 1)
            return torch.tanh(below @ w) + below * x

        return ps.cond(n > 0, inner, lambda: x)

    return walk


def by_hand(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = []
    for row, count in zip(x, counts, strict=True):
        made = row
        for _ in range(count):
            made = torch.tanh(made @ w) + made * row
        rows.append(made)
    return torch.stack(rows)


def test_values_and_gradients_stay_as_they_were(monkeypatch):
    straight = []
    for kind, name in ((StraightWindow, "run"), (StraightWay, "go")):
        plain = getattr(kind, name)

        def spy(self, *args, plain=plain):
            straight.append(type(self).__name__)
            return plain(self, *args)

        monkeypatch.setattr(kind, name, spy)
    w, x = weight.clone().requires_grad_(), starts.clone().requires_grad_()
    walk, scale = new_program(w), torch.randn_like(starts)
    expected = torch.autograd.grad((by_hand(w, x) * scale).sum(), (w, x))
    for _ in range(CALLS):
        found = walk.map(x, counts, out="stack")
        torch.testing.assert_close(found, by_hand(w, x))
        torch.testing.assert_close(torch.autograd.grad((found * scale).sum(), (w, x)), expected)
        with torch.no_grad():
            torch.testing.assert_close(walk.map(x, counts, out="stack"), by_hand(w, x))
    assert straight.count("StraightWindow") > straight.count("StraightWay") > 0


def test_a_graph_is_used_up_and_may_be_retained():
    w = weight.clone().requires_grad_()
    walk = new_program(w)
    for _ in range(CALLS):
        loss = walk.map(starts, counts, out="stack").sum()
        kept = torch.autograd.grad(loss, w, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(loss, w), kept)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(loss, w)


def test_a_weight_that_was_changed_in_place_is_refused():
    w = weight.clone().requires_grad_()
    walk = new_program(w)
    for _ in range(CALLS):
        loss = walk.map(starts, counts, out="stack").sum()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, w)


def test_code_that_fails_is_done_the_usual_way(monkeypatch):
    def fail(tensors):
        raise RuntimeError("no such code")

    plain_window, plain_way = StraightWindow._call, StraightWay._call
    monkeypatch.setattr(StraightWindow, "_call", lambda *a: plain_window(*a)._replace(code=fail))
    monkeypatch.setattr(
        StraightWay, "_call", lambda *a: (made := plain_way(*a)) and made._replace(code=fail)
    )
    w = weight.clone().requires_grad_()
    walk = new_program(w)
    expected = torch.autograd.grad(by_hand(w, starts).sum(), w)
    for _ in range(CALLS):
        loss = walk.map(starts, counts, out="stack").sum()
        torch.testing.assert_close(torch.autograd.grad(loss, w), expected)


def test_rows_that_share_a_start_nobody_asks_for():
    w = weight.clone().requires_grad_()

    @ps.function
    def gather(x, n):
        zeros = w[0].new_zeros(4)
        body = lambda k, sums: (k + 1, torch.tanh(sums @ w + x))  # noqa: E731
        return ps.while_loop(lambda k, sums: k < n, body, (0, zeros))[1]

    def plain():
        rows = []
        for x, count in zip(starts, counts, strict=True):
            sums = torch.zeros(4, dtype=torch.float64)
            for _ in range(count):
                sums = torch.tanh(sums @ w + x)
            rows.append(sums)
        return torch.stack(rows)

    scale = torch.randn_like(starts)
    expected = torch.autograd.grad((plain() * scale).sum(), w)
    for _ in range(CALLS):
        loss = (gather.map(starts, counts, out="stack") * scale).sum()
        torch.testing.assert_close(torch.autograd.grad(loss, w), expected)
