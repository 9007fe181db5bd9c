"""`torch.autocast` around a call and inside a program: dtypes and gradients as in eager code."""

import pytest
import torch
from torch import nn

import penstock as ps


def model():
    torch.manual_seed(0)
    return nn.Linear(4, 4), torch.randn(5, 4).requires_grad_()


def low():
    return torch.autocast("cpu", torch.bfloat16)


def gradients(rows, tensors, **options):
    return torch.autograd.grad(sum(row.float().sin().sum() for row in rows), tensors, **options)


def assert_close(mine, theirs):
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_gradients_under_autocast_are_close_to_eager(inside):
    layer, x = model()

    @ps.function
    def f(x):
        h = torch.tanh(layer(x))
        return ps.cond(x.sum() > 0, lambda: layer(h), lambda: h.softmax(-1))

    with low():
        rows = f.map(x)
        grads = gradients(rows, (x, layer.weight)) if inside else None
    grads = grads or gradients(rows, (x, layer.weight))
    with low(), ps.set_eager(True):
        eager = f.map(x)
    assert [row.dtype for row in rows] == [row.dtype for row in eager]
    assert_close(grads, gradients(eager, (x, layer.weight)))
    assert grads[1].dtype == torch.float32


def test_second_derivatives_under_autocast():
    layer, x = model()

    @ps.function
    def f(x):
        return torch.tanh(layer(x))

    def second(rows):
        (first,) = gradients(rows, (x,), create_graph=True)
        return torch.autograd.grad(first.float().pow(2).sum(), layer.weight)

    with low():
        rows, eager = f.map(x), [torch.tanh(layer(row)) for row in x]
    assert_close(second(rows), second(eager))


def test_the_same_function_with_and_without_autocast():
    layer, x = model()

    @ps.function
    def f(x):
        return layer(x)

    with low():
        assert f.map(x)[0].dtype == torch.bfloat16
    assert f.map(x)[0].dtype == torch.float32
    torch.testing.assert_close(gradients(f.map(x), (x,)), gradients([layer(x)], (x,)))


def test_uniform_values_are_differentiated_in_the_precision_they_were_computed_in():
    layer, x = model()
    base = torch.randn(4, requires_grad=True)

    @ps.function
    def f(x):
        return x * torch.tanh(layer(base)).float()

    with low():
        rows = f.map(x.detach())
    with low(), ps.set_eager(True):
        eager = f.map(x.detach())
    assert_close(gradients(rows, (base, layer.weight)), gradients(eager, (base, layer.weight)))


def test_a_program_may_turn_autocast_off():
    layer, x = model()

    @ps.function
    def f(x):
        h = layer(x)
        with torch.autocast("cpu", enabled=False):
            return layer(h.float())

    with low():
        rows, eager = f.map(x), [f.__wrapped__(row) for row in x]
    torch.testing.assert_close(rows, eager)
    assert_close(gradients(rows, (layer.weight,)), gradients(eager, (layer.weight,)))


def test_a_program_may_turn_autocast_on():
    layer, x = model()

    @ps.function
    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            h = layer(x)
        return layer(h.float())

    eager = [f.__wrapped__(row) for row in x]
    rows = f.map(x)
    torch.testing.assert_close(rows, eager)
    assert_close(gradients(rows, (layer.weight,)), gradients(eager, (layer.weight,)))


def test_weights_are_cast_once_per_call():
    layer, x = model()

    @ps.function
    def f(x, n):
        def step(k, h):
            return k + 1, torch.tanh(layer(h)).float()

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    with low():
        graph = f.graph(x[0], 3)
        rows = f.map(x, [3] * 5)
        with ps.set_eager(True):
            eager = f.map(x, [3] * 5)
    casts = [uniform for uniform in graph.uniforms if uniform.inputs]
    assert [uniform.node.operation.name for uniform in casts] == ["torch.Tensor.to"] * 2
    assert_close(gradients(rows, (x, layer.weight)), gradients(eager, (x, layer.weight)))


def test_the_conjugate_of_a_complex_number_in_the_program():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    @ps.function
    def turn(x):
        return (torch.exp(x * (0.5 + 1j)) * (1 - 2j)).imag

    expected = (torch.exp(x * (0.5 + 1j)) * (1 - 2j)).imag
    cotangent = torch.randn_like(expected)
    found, known = (
        torch.autograd.grad(y, x, cotangent)[0] for y in (turn.map(x, out="stack"), expected)
    )
    torch.testing.assert_close(found, known)
