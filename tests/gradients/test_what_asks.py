"""What asks for gradients, and what does not: inputs, closures, parameters, `detach`, frozen
weights, grad modes.
"""

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.autodiff import function as autodiff_function
from penstock.run.prepared import PreparedLaunch


@pytest.fixture
def tapes(monkeypatch):
    """The runs that leave a tape."""
    made = []

    class Watched(autodiff_function.TapedRun):
        def finish(self):
            super().finish()
            made.append(self)

    monkeypatch.setattr(autodiff_function, "TapedRun", Watched)
    return made


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2, dtype=torch.float64)
        self.outer = nn.Linear(2, 1, dtype=torch.float64)

    @ps.function
    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x))).sum()


def inputs():
    return torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_saved_where_gradients_are_off(tapes, mode):
    model = Scorer()
    with mode():
        scores = ps.map(model, inputs())
    assert tapes == []
    assert not scores[0].requires_grad


def test_nothing_is_saved_where_nothing_asks(tapes):
    model = Scorer().requires_grad_(False)
    assert not ps.map(model, inputs())[0].requires_grad
    assert tapes == []


def test_a_model_used_first_in_inference_mode_can_be_trained(tapes):
    model = Scorer()
    with torch.inference_mode():
        before = ps.map(model, inputs())
    loss = sum(ps.map(model, inputs()))
    loss.backward()
    assert len(tapes) == 1
    torch.testing.assert_close(loss.detach(), sum(before).clone())
    assert all(weight.grad is not None for weight in model.parameters())


def test_training_records_no_graph_inside_the_run(monkeypatch):
    states = []
    launch = PreparedLaunch.arguments

    def watched(self, *args):
        states.append(torch.is_grad_enabled())
        return launch(self, *args)

    monkeypatch.setattr(PreparedLaunch, "arguments", watched)
    sum(ps.map(Scorer(), inputs())).backward()
    assert states
    assert not any(states)


def test_frozen_parameters_get_none_and_the_others_the_same_as_before():
    model = Scorer()
    expected = torch.autograd.grad(sum(ps.map(model, inputs())), list(model.outer.parameters()))
    model.inner.requires_grad_(False)
    sum(ps.map(model, inputs())).backward()
    assert model.inner.weight.grad is None
    torch.testing.assert_close([w.grad for w in model.outer.parameters()], list(expected))


def test_a_parameter_that_is_unfrozen_is_trained_by_the_next_call():
    model = Scorer().requires_grad_(False)
    ps.map(model, inputs())
    model.inner.requires_grad_(True)
    sum(ps.map(model, inputs())).backward()
    assert model.inner.weight.grad is not None
    assert model.outer.weight.grad is None


def test_only_some_instances_ask():
    @ps.function
    def f(x, y):
        return (x * y).sum()

    x = [torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2)]
    out = f.map(x, torch.full((3, 2), 3.0))
    (grad,) = torch.autograd.grad(sum(out), x[1])
    assert torch.equal(grad, torch.full((2,), 3.0))


def test_detach_inside_a_program_stops_gradients():
    @ps.function
    def f(x, y):
        return (x * (y.detach() * 2) + (x * y).detach() + x.data).sum()

    x, y = (torch.randn(3, 2, requires_grad=True) for _ in range(2))
    grads = torch.autograd.grad(sum(f.map(x, y)), (x, y), allow_unused=True)
    torch.testing.assert_close(grads[0], 2 * y.detach())
    assert grads[1] is None


def test_no_grad_inside_a_program_stops_gradients():
    @ps.function
    def f(x):
        with torch.no_grad():
            scale = x.norm()
        return (x / scale).sum()

    x = torch.randn(3, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(sum(f.map(x)), x)
    torch.testing.assert_close(grad, (1 / x.detach().norm(dim=1))[:, None].expand(3, 2))


def test_detach_holds_in_second_derivatives():
    @ps.function
    def f(x):
        return (x * x.detach() * x).sum()

    x = torch.randn(3, requires_grad=True)
    (first,) = torch.autograd.grad(sum(f.map(x)), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 2 * x.detach())


def test_a_shared_argument_gets_the_sum_over_all_instances():
    @ps.function
    def f(x, w):
        return (x * w).sum()

    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(sum(f.map(inputs(), ps.shared(w))), w)
    torch.testing.assert_close(grad, inputs().sum(0))
