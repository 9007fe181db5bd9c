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


#: What is computed of a parameter alone, once for all instances, and whether the derivative needs
#: contents: of the parameter, or of what was computed of it, which is not kept.
OF_A_PARAMETER = {
    "square": (lambda w: w * w, True),
    "tanh": (lambda w: torch.tanh(w), True),
    "double": (lambda w: w * 2, False),
    "part": (lambda w: w[:2].sum(), False),
    "square and then negative": (lambda w: -(w * w), True),
}


@pytest.mark.parametrize("policy", ["keep", "recompute", "swap"])
@pytest.mark.parametrize("case", OF_A_PARAMETER.values(), ids=OF_A_PARAMETER)
def test_a_step_of_an_optimizer_before_backward_of_what_is_computed_of_parameters_alone(
    case, policy
):
    make, is_needed = case
    w = torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
    f = ps.function(lambda x: (x + make(w)).sum(), memory=policy)
    loss = sum(f.map(torch.ones(2)))
    (expected,) = torch.autograd.grad(loss, w, retain_graph=True)
    w.grad = torch.ones(3)
    torch.optim.SGD([w]).step()
    if is_needed:
        with pytest.raises(RuntimeError, match=f"{MODIFIED}.*version 1; expected version 0"):
            loss.backward()
    else:
        (actual,) = torch.autograd.grad(loss, w)
        torch.testing.assert_close(actual, expected)


def test_nor_a_buffer_that_a_parameter_is_multiplied_by():
    w, kept = torch.nn.Parameter(torch.tensor(0.5)), torch.tensor(3.0)
    f = ps.function(lambda x: x + w * kept)
    first, second = sum(f.map(torch.ones(2))), sum(f.map(torch.ones(2)))
    w.data.add_(1)
    first.backward()
    assert w.grad == 6
    kept.add_(1)
    with pytest.raises(RuntimeError, match=MODIFIED):
        second.backward()


def test_a_parameter_may_change_whose_gradient_needs_another_value_alone():
    w, kept = torch.nn.Parameter(torch.tensor(0.5)), torch.tensor(3.0)
    loss = sum(ps.function(lambda x: x + w * kept).map(torch.ones(2)))
    with torch.no_grad():
        w.add_(1)
    loss.backward()
    assert w.grad == 6
