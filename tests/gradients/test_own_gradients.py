"""Code that handles gradients itself inside a program is refused with the way out."""

import pytest
import torch

import penstock as ps
from penstock.errors import TracedValueError


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1, 1)


def refused(function):
    with pytest.raises(TracedValueError) as caught:
        ps.function(function)(torch.ones(2, requires_grad=True))
    return str(caught.value)


def test_a_custom_autograd_function():
    message = refused(lambda x: Clip.apply(x).sum())
    assert "its backward would be lost" in message
    assert "autograd.Function.apply" in message
    assert "call it on what the program returns" in message


def test_a_custom_autograd_function_around_a_program():
    @ps.function
    def f(x):
        return (x * 5).sum()

    x = torch.ones(2, 2, requires_grad=True)
    rows = [Clip.apply(row) for row in x]
    (grad,) = torch.autograd.grad(sum(f.map(rows)), x)
    assert torch.equal(grad, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda x: x.sum().backward(), ".backward()"),
        (lambda x: x.register_hook(abs), ".register_hook()"),
        (lambda x: torch.autograd.grad(x.sum(), x)[0], "torch.autograd.grad"),
    ],
)
def test_asking_torch_for_gradients(use, name):
    message = refused(use)
    assert f"{name} cannot run inside a program" in message
    assert "test_own_gradients.py" in message
    assert message.endswith("Call it on what the program returns.")


def test_checkpoints_are_plain_calls():
    from torch.utils.checkpoint import checkpoint

    @ps.function
    def f(x):
        return checkpoint(lambda x: torch.tanh(x) * 2, x, use_reentrant=False).sum()

    x = torch.randn(3, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(sum(f.map(x)), x)
    torch.testing.assert_close(grad, 2 * (1 - torch.tanh(x.detach()) ** 2))
