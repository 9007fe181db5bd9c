"""Tensors changed in place between forward and backward: torch's error where torch raises it."""

import pytest
import torch

import penstock as ps

MODIFIED = "has been modified by an inplace operation"


def test_a_parameter_that_backward_reads_must_not_change():
    w = torch.nn.Parameter(torch.tensor(0.5))

    @ps.function
    def f(x):
        return x * w

    loss = sum(f.map(torch.ones(2, requires_grad=True)))
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match=f"{MODIFIED}.*version 1; expected version 0"):
        loss.backward()


def test_nor_before_a_backward_that_makes_a_graph():
    w = torch.nn.Parameter(torch.tensor(0.5))

    @ps.function
    def f(x):
        return x * w

    loss = sum(f.map(torch.ones(2, requires_grad=True)))
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match=MODIFIED):
        torch.autograd.grad(loss, w, create_graph=True)


@pytest.mark.parametrize("run", [lambda f, x: ps.function(f).map(x), ps.map], ids=["map", "eager"])
def test_nor_an_input_before_a_backward_that_makes_a_graph(run):
    x = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    first, second = run(lambda x: (x * x).sum(), x)
    with torch.no_grad():
        x[1].mul_(2)
    with pytest.raises(RuntimeError, match=MODIFIED):
        torch.autograd.grad(first + second, x, create_graph=True)


def test_results_without_gradients_can_be_changed_one_by_one():
    with torch.no_grad():
        first, second = ps.function(lambda x: x * 2).map(torch.ones(2, 3))
    w = torch.ones(3, requires_grad=True)
    loss = (first * w).sum()
    second.add_(w)
    loss.backward()
    torch.testing.assert_close(w.grad, torch.full((3,), 2.0))
    assert second.requires_grad


def test_an_input_that_backward_reads_must_not_change():
    w = torch.tensor(0.5, requires_grad=True)

    @ps.function
    def f(x):
        return x * w

    x = torch.ones(2)
    loss = sum(f.map(x))
    x.mul_(2)
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


def test_a_parameter_that_backward_does_not_read_may_change():
    w = torch.nn.Parameter(torch.tensor(0.5))

    @ps.function
    def f(x):
        return x + w

    loss = sum(f.map(torch.ones(2)))
    with torch.no_grad():
        w.mul_(2)
    loss.backward()
    assert w.grad == 2


def test_a_change_after_a_changed_parameter_does_not_disturb_the_next_step():
    w = torch.nn.Parameter(torch.tensor(0.5))

    @ps.function
    def f(x):
        return torch.tanh(x * w)

    for _ in range(2):
        sum(f.map(torch.ones(2, requires_grad=True))).backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
        w.grad = None
    assert w < 0.5
