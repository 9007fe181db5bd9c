"""No cotangent is not a zero cotangent: what nobody reads spoils nothing, and stays None."""

import math

import torch

import penstock as ps


def test_an_untaken_branch_with_an_infinite_derivative_is_not_heard_of():
    @ps.function
    def f(x):
        y = torch.sqrt(x)
        return ps.cond(x > 0, lambda: y, lambda: 3 * x)

    x = torch.tensor([0.0, 4.0], requires_grad=True)
    (grad,) = torch.autograd.grad(sum(f.map(x)), x)
    torch.testing.assert_close(grad, torch.tensor([3.0, 0.25]))


def test_second_derivatives_do_not_hear_of_it_either():
    @ps.function
    def f(x):
        y = torch.sqrt(x)
        return ps.cond(x > 0, lambda: y, lambda: 3 * x * x)

    x = torch.tensor([0.0, 4.0], requires_grad=True)
    (first,) = torch.autograd.grad(sum(f.map(x)), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.tensor([6.0, -1 / 32]))


def test_a_sum_over_the_finite_losses_has_finite_weight_gradients():
    weight = torch.randn(3, 3, requires_grad=True)

    @ps.function
    def loss(x):
        return (torch.tanh(x @ weight) + x @ weight).sum()

    inputs = [torch.randn(3), torch.full((3,), math.inf), torch.randn(3)]
    losses = loss.map(inputs)
    (grad,) = torch.autograd.grad(sum(x for x in losses if x.isfinite()), weight)
    eager = [(torch.tanh(x @ weight) + x @ weight).sum() for x in (inputs[0], inputs[2])]
    (expected,) = torch.autograd.grad(sum(eager), weight)
    torch.testing.assert_close(grad, expected)


def test_rows_that_use_one_of_two_results_get_that_derivative_alone():
    @ps.function
    def both(x):
        return torch.sqrt(x), 2 * x

    x = torch.tensor([0.0, 4.0, 9.0], requires_grad=True)
    rows = both.map(x)
    (grad,) = torch.autograd.grad(rows[0][1] + rows[1][0] + sum(rows[2]), x)
    torch.testing.assert_close(grad, torch.tensor([2.0, 0.25, 2 + 1 / 6]))


def test_gradients_are_none_exactly_where_eager_gives_none():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)

    @ps.function
    def f(x, y, takes_first):
        return ps.cond(takes_first, lambda: x * used, lambda: x * used + y * unused)

    x = [torch.ones(2, requires_grad=True) for _ in range(2)]
    y = [torch.ones(2, requires_grad=True) for _ in range(2)]
    out = f.map(x, y, [True, True])
    grads = torch.autograd.grad(out[0].sum(), [*x, *y, used, unused], allow_unused=True)
    assert [grad is None for grad in grads] == [False, True, True, True, False, True]


def test_gradients_are_zeros_where_eager_gives_zeros():
    @ps.function
    def f(x):
        return x * 0.0

    x = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    grads = torch.autograd.grad(sum(row.sum() for row in f.map(x)), x)
    assert all(torch.equal(grad, torch.zeros(2)) for grad in grads)


def test_rows_of_one_input_tensor_without_a_cotangent_get_zeros():
    @ps.function
    def f(x):
        return torch.sqrt(x)

    x = torch.zeros(3, requires_grad=True)
    with torch.no_grad():
        x[1] = 4
    (grad,) = torch.autograd.grad(f.map(x)[1], x)
    torch.testing.assert_close(grad, torch.tensor([0.0, 0.25, 0.0]))


def test_an_instance_that_leaves_a_loop_early_is_not_heard_of_later():
    @ps.function
    def f(x, n):
        return ps.while_loop(lambda k, h: k < n, lambda k, h: (k + 1, torch.sqrt(h)), (0, x))[1]

    x = torch.tensor([0.0, 16.0], requires_grad=True)
    (grad,) = torch.autograd.grad(sum(f.map(x, [0, 2])), x)
    torch.testing.assert_close(grad, torch.tensor([1.0, 1 / 32]))
