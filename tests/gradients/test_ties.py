"""Where several elements are the extreme one, gradients are shared among them as torch does it."""

import math

import pytest
import torch

import penstock as ps

ROWS = [[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [3.0, 1.0, 2.0], [-math.inf, 0.0, math.inf]]
REDUCTIONS = ["max", "min", "median", "nanmedian", "amax", "amin"]


def in_a_block(name):
    return lambda x: getattr(x, name)()


def in_a_loop(name):
    def reduce(x):
        step = lambda i, y: (i + 1, getattr(x, name)())  # noqa: E731
        return ps.while_loop(lambda i, y: i < 1, step, (0, x.sum()))[1]

    return reduce


def values_and_gradients(rows, outputs, *, create_graph=False):
    scale = torch.arange(1.0, len(rows) + 1, dtype=rows.dtype)
    (gradient,) = torch.autograd.grad((outputs * scale).sum(), rows, create_graph=create_graph)
    return outputs.detach(), gradient.detach()


@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "differentiable"])
@pytest.mark.parametrize("place", [in_a_block, in_a_loop])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_extreme_elements_share_the_gradient(name, place, create_graph):
    rows = torch.tensor(ROWS, dtype=torch.float64, requires_grad=True)
    reduce = place(name)
    found = ps.function(reduce).map(rows, out="stack")
    expected = torch.stack([reduce(row) for row in rows])
    torch.testing.assert_close(
        values_and_gradients(rows, found, create_graph=create_graph),
        values_and_gradients(rows, expected),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("place", [in_a_block, in_a_loop])
@pytest.mark.parametrize("name", ["max", "min", "median"])
def test_a_nan_among_the_elements_gets_the_gradient(name, place):
    rows = torch.tensor([[1.0, math.nan, 2.0], [3.0, 3.0, 1.0]], requires_grad=True)
    reduce = place(name)
    found = ps.function(reduce).map(rows, out="stack")
    expected = torch.stack([reduce(row) for row in rows])
    torch.testing.assert_close(
        values_and_gradients(rows, found), values_and_gradients(rows, expected), equal_nan=True
    )
