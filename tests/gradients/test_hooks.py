"""Hooks on tensors and modules, and what happens when one of them fails."""

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.errors import TracedValueError


def test_tensor_hooks_see_and_change_gradients():
    w = torch.tensor(0.5, requires_grad=True)
    seen = []
    w.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)

    @ps.function
    def f(x):
        return x * w

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    rows = f.map(x)
    rows[1].register_hook(lambda grad: grad * 10)
    sum(rows).backward()
    assert seen == [torch.tensor(21.0)]
    assert w.grad == 42
    torch.testing.assert_close(x.grad, torch.tensor([0.5, 5.0]))


def test_forward_hooks_of_modules_are_part_of_the_program():
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, args, output: output * 3)

    @ps.function
    def f(x):
        return layer(x).sum()

    x = torch.randn(3, 2)
    (grad,) = torch.autograd.grad(sum(f.map(x)), layer.weight)
    torch.testing.assert_close(grad, 3 * x.sum(0).expand(2, 2))


def test_backward_hooks_of_modules_are_refused():
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)

    @ps.function
    def f(x):
        return layer(x).sum()

    with pytest.raises(TracedValueError) as caught:
        f(torch.randn(2))
    message = str(caught.value)
    assert "A module with backward hooks cannot run inside a program" in message
    assert "test_hooks.py" in message
    assert "register_full_backward_hook" in message
    assert message.endswith("put hooks on the parameters or on what the program returns.")


def test_backward_hooks_around_a_program_run():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return torch.stack(score.map(x, weight=self.weight))

    @ps.function
    def score(x, weight):
        return (x * weight).sum()

    model, seen = Model(), []
    model.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0]))
    model(torch.ones(3, 2, requires_grad=True)).sum().backward()
    assert torch.equal(seen[0], torch.ones(3))


class Fails(Exception):
    pass


def test_a_failing_hook_leaves_everything_usable():
    w = torch.tensor(0.5, requires_grad=True)

    @ps.function
    def f(x):
        return torch.tanh(x * w)

    def fail(grad):
        raise Fails

    x = torch.rand(3)
    rows = f.map(x)
    handle = rows[0].register_hook(fail)
    with pytest.raises(Fails):
        sum(rows).backward(retain_graph=True)
    handle.remove()
    (retried,) = torch.autograd.grad(sum(rows), w)
    (again,) = torch.autograd.grad(sum(f.map(x)), w)
    torch.testing.assert_close(retried, again)


def test_an_error_in_a_backward_launch_leaves_everything_usable(monkeypatch):
    from penstock.autodiff.reverse import Reversal

    w = torch.tensor(0.5, requires_grad=True)

    @ps.function
    def f(x):
        return torch.tanh(x * w)

    def fail(*args):
        raise torch.OutOfMemoryError("no memory left")

    x = torch.rand(3)
    with monkeypatch.context() as patch:
        patch.setattr(Reversal, "run_backward", fail)
        with pytest.raises(torch.OutOfMemoryError):
            sum(f.map(x)).backward()
    sum(f.map(x)).backward()
    expected = torch.autograd.grad(torch.tanh(x * w).sum(), w)[0]
    torch.testing.assert_close(w.grad, expected)
