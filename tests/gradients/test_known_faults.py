"""Cases in which torch's own `while_loop` gives wrong derivatives without a word: here they are
right.
"""

import pytest
import torch

import penstock as ps


def derivatives(y, w, orders):
    found = []
    for _ in range(orders):
        (y,) = torch.autograd.grad(y, w, create_graph=True)
        found.append(y.item())
    return found


def test_a_closed_over_weight_under_an_input_without_gradients_to_third_order():
    w = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    x = torch.tensor(0.5, dtype=torch.float64)

    @ps.function
    def f(x):
        return ps.while_loop(lambda k, h: k < 5, lambda k, h: (k + 1, torch.tanh(h * w)), (0, x))[1]

    def plain(x):
        for _ in range(5):
            x = torch.tanh(x * w)
        return x

    assert derivatives(f(x), w, 3) == pytest.approx(derivatives(plain(x), w, 3), rel=1e-12)


def test_a_recurrent_net_that_starts_from_zeros_to_third_order():
    torch.manual_seed(0)
    cell = torch.nn.RNNCell(2, 3, dtype=torch.float64)
    x = torch.randn(4, 2, dtype=torch.float64)

    @ps.function
    def f(x):
        def step(h, row):
            return (cell(row, h), h.sum())

        return ps.scan(step, torch.zeros(3, dtype=torch.float64), x)[0].pow(2).sum()

    def plain(x):
        h = torch.zeros(3, dtype=torch.float64)
        for row in x:
            h = cell(row, h)
        return h.pow(2).sum()

    def orders(y):
        weights = list(cell.parameters())
        for _ in range(3):
            grads = torch.autograd.grad(y, weights, create_graph=True)
            y = sum(grad.sin().sum() for grad in grads)
            yield grads

    for mine, theirs in zip(orders(f(x)), orders(plain(x)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_one_tensor_in_many_places_counts_once_in_each_to_second_order():
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    double = w * 2

    @ps.function
    def f(x, a, b):
        return torch.tanh(x * a) * b

    xs = torch.rand(4, dtype=torch.float64)
    mapped = torch.stack(f.map(xs, [w] * 4, [double] * 4))
    plain = torch.stack([torch.tanh(x * w) * double for x in xs])
    assert derivatives(mapped.sum(), w, 2) == pytest.approx(derivatives(plain.sum(), w, 2))
