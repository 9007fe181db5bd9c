"""`torch.func.grad` inside the straight-line parts of a program, and gradients through it."""

import pytest
import torch
from torch import nn
from torch.func import grad, grad_and_value

import penstock as ps
from penstock.errors import TracedValueError

torch.manual_seed(0)
LAYER = nn.Linear(2, 2, dtype=torch.float64)


def energy(y):
    return torch.tanh(LAYER(y)).pow(2).sum() + y.sum() ** 2


STRAIGHT = {
    "powers": lambda x: grad(lambda y: (y**3).sum())(x),
    "weights": lambda x: grad(energy)(x),
    "closures": lambda x: grad(lambda y: torch.exp(y * x).sum())(x) * x,
    "values too": lambda x: torch.stack([part.sum() for part in grad_and_value(energy)(x)]),
    "twice": lambda x: grad(lambda y: grad(energy)(y).sin().sum())(x),
}


def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 2, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("name", STRAIGHT)
def test_values_and_gradients_agree_with_eager_code(name):
    function, x = STRAIGHT[name], inputs()
    rows, eager = ps.function(function).map(x), [function(row) for row in x]
    torch.testing.assert_close(rows, eager)
    targets = (x, LAYER.weight)

    def gradients(outputs):
        total = sum(row.sin().sum() for row in outputs)
        return torch.autograd.grad(total, targets, allow_unused=True)

    torch.testing.assert_close(gradients(rows), gradients(eager))


def test_descent_in_a_loop_can_be_trained_through():
    @ps.function
    def descend(x, n):
        def step(k, h):
            return k + 1, h - 0.1 * grad(energy)(h)

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    x, counts = inputs(), [0, 2, 3]
    rows = descend.map(x, counts)
    with ps.set_eager(True):
        eager = descend.map(x, counts)
    mine = torch.autograd.grad(sum(row.sum() for row in rows), (x, LAYER.weight))
    expected = torch.autograd.grad(sum(row.sum() for row in eager), (x, LAYER.weight))
    torch.testing.assert_close(mine, expected)


def test_an_optimizer_step_is_seen_by_the_next_call():
    layer = nn.Linear(2, 1, dtype=torch.float64)
    slope = ps.function(lambda x: grad(lambda y: layer(y).sum())(x))
    x = inputs().detach()
    slope.map(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(slope.map(x)[0], layer.weight[0])


def test_sequences_of_different_lengths_run_by_length():
    cubes = ps.function(lambda x: grad(lambda y: (y**3).sum())(x))
    xs = [torch.randn(3), torch.randn(2), torch.randn(3)]
    torch.testing.assert_close(cubes.map(xs), [3 * x**2 for x in xs])


def test_control_flow_inside_a_transformed_function_is_refused():
    @ps.function
    def f(x):
        return grad(lambda y: ps.cond(y.sum() > 0, lambda: y.sum(), lambda: -y.sum()))(x)

    with pytest.raises(
        TracedValueError, match="Control flow cannot run inside a function that torch"
    ):
        f(torch.ones(2))
