"""Transforms of torch inside the straight-line parts of a program, and around programs."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
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


def iterated(x, n):
    for _ in range(n):
        x = torch.tanh(LAYER(x)) * x
    return x


AROUND = {
    "grad": lambda f, x: grad(lambda y: f(y, 2).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(lambda y: f(y, 2))(torch.stack([x, x + 1])),
    "random vmap": lambda f, x: torch.func.vmap(
        lambda y: f(y, 2) + 0 * torch.rand(()), randomness="different"
    )(torch.stack([x, x + 1])),
    "jacrev": lambda f, x: torch.func.jacrev(lambda y: f(y, 2))(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(lambda y: f(y, 2))(x),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y, 2).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(lambda y: f(y, 2), (x,), (torch.ones_like(x),))[1],
    "forward mode": lambda f, x: torch.autograd.functional.jacobian(
        lambda y: f(y, 2), x, strategy="forward-mode", vectorize=True
    ),
}


#: Torch's forward mode brings it along.
scripted = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@scripted
@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("asks", [False, True])
def test_transforms_around_programs_and_maps_agree_with_those_of_plain_code(name, asks):
    transformed, x = AROUND[name], inputs()[0].detach().requires_grad_(asks)
    expected = transformed(iterated, x)
    torch.testing.assert_close(transformed(ps.function(iterated), x), expected)
    mapped = transformed(lambda y, n: ps.map(iterated, [y, y], [n, n])[1], x)
    torch.testing.assert_close(mapped, expected)


@scripted
def test_tangents_go_through_a_program():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(inputs()[0].detach(), torch.ones(2, dtype=torch.float64))
        expected = forward_ad.unpack_dual(iterated(x, 2)).tangent
        tangent = forward_ad.unpack_dual(ps.function(iterated)(x, 2)).tangent
    torch.testing.assert_close(tangent, expected)


def test_decisions_inside_of_vmap_name_map():
    until = ps.function(lambda x: ps.while_loop(lambda y: y < 10, lambda y: 2 * y, x))
    with pytest.raises(RuntimeError, match="vmap: It looks like") as caught:
        torch.func.vmap(until)(torch.ones(3))
    assert caught.value.__notes__ == [
        "Use <lambda>.map in the place of vmap: it lets each instance decide."
    ]


def test_compiled_code_calls_a_program_as_it_is():
    frames = []

    def backend(graph, _):
        frames.append(graph)
        return graph.forward

    program, x = ps.function(iterated), inputs()[0].detach()
    compiled = torch.compile(lambda x: program(x * 2, 2) + 1, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), iterated(x * 2, 2) + 1)
    assert len(frames) == 2  # what is before the call, and what is after it
