"""`backward`, `autograd.grad`, `retain_graph` and the rest behave as they do for any torch
function.
"""

import pytest
import torch

import penstock as ps

SECOND_TIME = "Trying to backward through the graph a second time"


@ps.function
def decay(x, w, n):
    return ps.while_loop(lambda k, h: k < n, lambda k, h: (k + 1, torch.tanh(h * w)), (0, x))[1]


def plain_decay(x, w, n):
    for _ in range(n):
        x = torch.tanh(x * w)
    return x


def leaves(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), torch.tensor([0.7, 1.2], dtype=torch.float64, requires_grad=True)


COUNTS = [0, 2, 3]


def mapped(x, w, counts=COUNTS):
    return decay.map(x, [w] * len(counts), counts)


def plain(x, w, counts=COUNTS):
    return [plain_decay(row, w, n) for row, n in zip(x, counts, strict=True)]


def weighted(rows):
    return sum((k + 1.5) * row.sin().sum() for k, row in enumerate(rows))


def test_backward_fills_grad_as_eager_does():
    x, w = leaves()
    weighted(mapped(x, w)).backward()
    x2, w2 = leaves()
    weighted(plain(x2, w2)).backward()
    torch.testing.assert_close((x.grad, w.grad), (x2.grad, w2.grad))


def test_two_calls_that_live_at_once_are_right():
    x, w = leaves()
    y, _ = leaves(1)
    total = weighted(mapped(x, w)) + weighted(mapped(y, w)) * weighted(mapped(x, w))
    expected = weighted(plain(x, w)) + weighted(plain(y, w)) * weighted(plain(x, w))
    grads = torch.autograd.grad(total, (x, y, w))
    torch.testing.assert_close(grads, torch.autograd.grad(expected, (x, y, w)))


def test_the_output_of_one_call_feeds_another():
    x, w = leaves()
    grads = torch.autograd.grad(weighted(mapped(torch.stack(mapped(x, w)), w)), (x, w))
    expected = torch.autograd.grad(weighted(plain(plain(x, w), w)), (x, w))
    torch.testing.assert_close(grads, expected)


def test_a_gradient_penalty():
    x, w = leaves()

    def penalty(rows):
        (grad,) = torch.autograd.grad(weighted(rows), x, create_graph=True)
        return weighted(rows) + (grad.norm() - 1) ** 2

    grads = torch.autograd.grad(penalty(mapped(x, w)), (x, w))
    torch.testing.assert_close(grads, torch.autograd.grad(penalty(plain(x, w)), (x, w)))


def test_a_second_backward_without_retain_graph_is_torchs_error():
    x, w = leaves()
    loss = weighted(mapped(x, w))
    loss.backward()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        loss.backward()


def test_the_error_comes_from_the_call_itself_too():
    x, w = leaves()
    rows = mapped(x, w)
    rows[1].sum().backward()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        rows[1].sin().sum().backward()


def test_retain_graph_allows_as_many_as_asked():
    x, w = leaves()
    loss = weighted(mapped(x, w))
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    second = torch.autograd.grad(loss, (x, w), retain_graph=True)
    third = torch.autograd.grad(loss, (x, w))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, third, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        torch.autograd.grad(loss, (x, w))


def test_backward_one_loss_after_the_other():
    x, w = leaves()
    for row in mapped(x, w):
        row.sin().sum().backward()
    expected = torch.autograd.grad(sum(row.sin().sum() for row in plain(x, w)), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_backward_through_some_outputs_and_later_through_others():
    x, w = leaves()

    @ps.function
    def f(x, n):
        h = decay(x, w, n)
        return h.sin(), (h + x).cos()

    rows = f.map(x, COUNTS)
    rows[1][0].sum().backward()
    rows[2][1].sum().backward()
    eager = plain(x, w)
    expected = eager[1].sin().sum() + (eager[2] + x[2]).cos().sum()
    torch.testing.assert_close((x.grad, w.grad), torch.autograd.grad(expected, (x, w)))


def test_what_saves_nothing_may_be_gone_through_twice_as_in_torch():
    w = torch.tensor(2.0, requires_grad=True)

    @ps.function
    def f(x):
        return x + w

    (row,) = f.map([torch.tensor(1.0)])
    row.backward()
    row.backward()
    assert w.grad == 2


def test_stacked_outputs():
    x, w = leaves()
    stacked = decay.map(x, [w] * 3, COUNTS, out="stack")
    weights = torch.randn(3, 2, dtype=torch.float64)
    grads = torch.autograd.grad((stacked * weights).sum(), (x, w))
    expected = torch.autograd.grad((torch.stack(plain(x, w)) * weights).sum(), (x, w))
    torch.testing.assert_close(grads, expected)


def test_padded_outputs():
    w = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

    @ps.function
    def f(x):
        return torch.tanh(x * w)

    xs = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 1, 2)]
    padded = f.map(xs, out="pad")
    weights = torch.randn(3, 3, 2, dtype=torch.float64)
    grads = torch.autograd.grad((padded.values * weights).sum(), (*xs, w))
    eager = sum((torch.tanh(x * w) * weights[k, : len(x)]).sum() for k, x in enumerate(xs))
    torch.testing.assert_close(grads, torch.autograd.grad(eager, (*xs, w)))


def test_outputs_may_be_changed_in_place():
    x, w = leaves()
    rows = mapped(x, w)
    rows[1].mul_(2)
    rows[2].add_(rows[1])
    eager = plain(x, w)
    expected = [eager[0], eager[1] * 2, eager[2] + eager[1] * 2]
    grads = torch.autograd.grad(weighted(rows), (x, w))
    torch.testing.assert_close(grads, torch.autograd.grad(weighted(expected), (x, w)))


def test_outputs_without_gradients_do_not_require_them():
    x, w = leaves()

    @ps.function
    def f(x, n):
        return (x * w).sum(), x.argmax(), n + 1, (x * w).detach()

    out = f(x[0], 3)
    assert [leaf.requires_grad for leaf in out] == [True, False, False, False]


def test_backward_from_another_thread():
    from concurrent.futures import ThreadPoolExecutor

    x, w = leaves()
    loss = weighted(mapped(x, w))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()
    torch.testing.assert_close(w.grad, torch.autograd.grad(weighted(plain(x, w)), w)[0])


def test_a_batch_of_cotangents_is_refused_with_the_way_out():
    double = ps.function(lambda x: x * 2)

    def outputs(x):
        return double.map(x, out="stack")

    x = torch.ones(2, 3)
    jacobian = torch.autograd.functional.jacobian
    assert jacobian(outputs, x).sum() == 12
    with pytest.raises(TypeError, match="Leave out vectorize=True"):
        jacobian(outputs, x, vectorize=True)
