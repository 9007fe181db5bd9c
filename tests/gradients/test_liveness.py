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


def backward_rows(run) -> list[int]:
    return [launch.rows for launch in run.launches if launch.is_backward]


def test_rows_that_lack_a_cotangent_that_is_only_added_go_with_the_others():
    @ps.function
    def state(x):
        kept = torch.tanh(x)
        return kept, kept * kept

    x = torch.randn(4, 3, requires_grad=True)
    with ps.profile() as run:
        rows = state.map(list(x))
        loss = sum(seen.sum() for _, seen in rows) + rows[1][0].sum()
        (grad,) = torch.autograd.grad(loss, x)
    assert backward_rows(run) == [4]
    eager = torch.tanh(x)
    (expected,) = torch.autograd.grad((eager * eager).sum() + eager[1].sum(), x)
    torch.testing.assert_close(grad, expected)


def test_a_cotangent_that_is_multiplied_is_not_replaced_by_zeros():
    @ps.function
    def both(x):
        root = torch.sqrt(x)
        return root, x + 1

    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with ps.profile() as run:
        rows = both.map(x)
        (grad,) = torch.autograd.grad(rows[0][1] + rows[1][0] + rows[1][1], x)
    assert sorted(backward_rows(run)) == [1, 1]
    torch.testing.assert_close(grad, torch.tensor([1.0, 1.25]))


def test_two_cotangents_that_are_only_added_to_each_other_are_not_replaced():
    @ps.function
    def three(x, y):
        both = x * y
        return both.sum(), both.prod(), y * 2

    xs = [torch.tensor([0.5, math.inf], requires_grad=True), torch.ones(2, requires_grad=True)]
    ys = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    rows = three.map(xs, ys)
    loss = rows[0][2].sum() + sum(value.sum() for value in rows[1])
    grads = torch.autograd.grad(loss, [*xs, *ys], allow_unused=True)
    assert grads[0] is None
    torch.testing.assert_close(grads[2], torch.full((2,), 2.0))
    eager = three.__wrapped__(xs[1], ys[1])
    expected = torch.autograd.grad(sum(value.sum() for value in eager), [xs[1], ys[1]])
    torch.testing.assert_close([grads[1], grads[3]], list(expected))


def test_second_derivatives_of_rows_that_use_one_of_two_results_do_not_hear_of_the_other():
    @ps.function
    def both(x, w):
        y = x * w
        return y, torch.log(y)

    x = torch.tensor([0.0, 3.0, 4.0], requires_grad=True)
    w = torch.tensor(2.0, requires_grad=True)

    def derivatives(rows):
        loss = rows[0][0] ** 2 + rows[1][1] + rows[2][0] * rows[2][1]
        first = torch.autograd.grad(loss, [x, w], create_graph=True)
        return [*first, *torch.autograd.grad(first[0].sum() + first[1], [x, w])]

    expected = derivatives([both.__wrapped__(row, w) for row in x])
    torch.testing.assert_close(derivatives(both.map(x, ps.shared(w))), expected)


def test_second_derivatives_do_not_hear_of_rows_that_are_only_read():
    @ps.function
    def f(x, w, is_detached):
        y = torch.sqrt(x * w)
        return ps.cond(is_detached, lambda: w * y.detach() + w, lambda: y * y * y)

    x = torch.tensor([0.0, 3.0])
    w = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(sum(f.map(x, ps.shared(w), [True, False])), w, create_graph=True)
    (second,) = torch.autograd.grad(first, w)
    power = 3.0**1.5
    torch.testing.assert_close(first, 1 + 1.5 * power * w.sqrt())
    torch.testing.assert_close(second, 0.75 * power / w.detach().sqrt())


def test_rows_of_a_function_in_mapped_code_without_a_cotangent_are_not_heard_of():
    w = torch.tensor(2.0, requires_grad=True)

    @ps.function
    def roots(x, n):
        return ps.while_loop(lambda k, h: k < n, lambda k, h: (k + 1, torch.sqrt(h * w)), (0, x))[1]

    x = [torch.tensor(value, requires_grad=True) for value in (0.0, 3.0, 4.0)]
    rows = ps.map(lambda x, n: roots(x, n), x, [1, 1, 2])
    grads = torch.autograd.grad(rows[1] + rows[2], [*x, w], allow_unused=True)
    eager = (x[1] * w).sqrt() + ((x[2] * w).sqrt() * w).sqrt()
    torch.testing.assert_close(grads, torch.autograd.grad(eager, [*x, w], allow_unused=True))


def test_rows_are_told_apart_by_any_number_of_results():
    @ps.function
    def many(x):
        return tuple(torch.sin(x * (k + 1)) for k in range(70))

    x = torch.tensor([0.1, 3.0, 4.0, 1.0], requires_grad=True)

    def gradient(rows):
        return torch.autograd.grad(sum(rows[0]) + rows[1][66] + rows[2][63] + rows[3][62], x)

    torch.testing.assert_close(
        gradient(many.map(x)), gradient([many.__wrapped__(row) for row in x])
    )


def test_elements_of_a_row_that_have_no_cotangent_are_zeros(monkeypatch):
    """A launch gives rows of several elements, of which one is picked: nobody writes the others."""
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    f = ps.function(lambda i, k: torch.nn.functional.embedding(i % 3, weight)[k % 3])
    rows, picked = torch.tensor([[0, 1, 2], [2, 2, 1]]), torch.tensor([1, 0])
    out = f.map(list(rows), list(picked), out="stack")
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _spoilt(empty(*a, **k)))
    (found,) = torch.autograd.grad(out.sum(), weight)
    assert found.tolist() == [[0, 0], [1, 1], [1, 1]]


def _spoilt(values):
    return values.fill_(torch.nan) if values.is_floating_point() else values
