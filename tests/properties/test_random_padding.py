"""Random chains of operations along dynamic dimensions: padded rows equal rows alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import penstock as ps

WIDTH = 3

#: From sequences [n, WIDTH] and [m, WIDTH] to a sequence like the first.
STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": lambda x, y: torch.tanh(x),
    "softmax": lambda x, y: x.softmax(0),
    "log_softmax": lambda x, y: x.log_softmax(0),
    "centre": lambda x, y: x - x.sum(0) / (x.shape[0] + 1),
    "attend": lambda x, y: torch.softmax(x @ y.T, 1) @ y,
    "itself": lambda x, y: torch.softmax(x @ x.T, 1) @ x,
    "cumsum": lambda x, y: x.cumsum(0) / 5,
    "flip": lambda x, y: x.flip(0),
    "shares": lambda x, y: x / (x * x).sum(0, keepdim=True),
    "log": lambda x, y: (x * x).log(),
    "exp": lambda x, y: (2 - x.abs()).exp(),
    "pool": lambda x, y: x * y.sum(0).tanh(),
    "conv": lambda x, y: (
        torch.nn.functional.conv1d(
            x.T.unsqueeze(0), torch.ones(WIDTH, WIDTH, 3, dtype=x.dtype) / 4, padding=1
        )
        .squeeze(0)
        .T
    ),
    "infinities": lambda x, y: x.masked_fill(x > 0.5, float("-inf")).softmax(1).nan_to_num(),
    "scale": lambda x, y: x * x.shape[0] / (1 + y.shape[0]),
}

#: From both sequences to a result without dynamic dimensions, or with the first's.
ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "whole": lambda x, y: x,
    "sum": lambda x, y: x.sum(0),
    "logsumexp": lambda x, y: torch.logsumexp(x, 0),
    "both": lambda x, y: torch.cat([x, y]).tanh().sum(0),
    "gram": lambda x, y: x.T @ x,
}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    st.sampled_from(sorted(ENDS)),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=5),
    st.integers(0, 1000),
)
def test_padded_rows_equal_rows_alone(steps, end, sizes, seed):
    def plain(x: Tensor, y: Tensor) -> Tensor:
        for step in steps:
            x = STEPS[step](x, y)
        return ENDS[end](x, y)

    torch.manual_seed(seed)
    xs = [torch.randn(n, WIDTH, dtype=torch.float64, requires_grad=True) for n, _ in sizes]
    ys = [torch.randn(m, WIDTH, dtype=torch.float64, requires_grad=True) for _, m in sizes]
    expected = [plain(x, y) for x, y in zip(xs, ys, strict=True)]
    actual = ps.function(plain).map(xs, ys)
    weights = [torch.randn_like(one) for one in expected]
    for mine, one in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-8, atol=1e-8, equal_nan=True)
    wanted = torch.autograd.grad(total(expected, weights), [*xs, *ys], allow_unused=True)
    found = torch.autograd.grad(total(actual, weights), [*xs, *ys], allow_unused=True)
    for mine, one in zip(found, wanted, strict=True):
        if mine is not None and one is not None and one.isfinite().all():
            torch.testing.assert_close(mine, one, rtol=1e-7, atol=1e-7)


def total(values: list[Tensor], weights: list[Tensor]) -> Tensor:
    return torch.stack([(v * w).sum() for v, w in zip(values, weights, strict=True)]).sum()
