"""The same gradients bit for bit, and blocks whose rows run one by one."""

import pytest
import torch

import penstock as ps


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_gradients_are_the_same_bit_for_bit():
    torch.manual_seed(0)
    table = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(8, 8, requires_grad=True)

    @ps.function
    def f(tokens, n):
        x = table[tokens]

        def body(k, h):
            return k + 1, torch.tanh(h @ weight + x.sum(0))

        return ps.while_loop(lambda k, h: k < n, body, (0, x[0]))[1].sum()

    tokens = torch.randint(0, 5, (20, 3))
    counts = [k % 4 for k in range(20)]
    first, second = (
        torch.autograd.grad(sum(f.map(tokens, counts)), (table, weight)) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_rows_that_run_one_by_one_are_differentiated_one_by_one():
    table = torch.nn.Embedding(5, 3, max_norm=1.0, dtype=torch.float64)
    with torch.no_grad():
        table.weight.mul_(0.1)

    @ps.function
    def f(k, x):
        return (table(k) * x).sum()

    numbers, x = [1, 2, 2], torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    with pytest.warns(ps.PenstockWarning, match="runs row by row"):
        rows = f.map(numbers, x)
    grads = torch.autograd.grad(sum(rows), (table.weight, x))
    eager = sum((table.weight[k] * row).sum() for k, row in zip(numbers, x, strict=True))
    torch.testing.assert_close(grads, torch.autograd.grad(eager, (table.weight, x)))
