"""Recorded steps on a GPU: as on the CPU, and without waiting for the device."""

import warnings
from contextlib import contextmanager

import pytest
import torch

from tests.recorded_steps import Steps

pytestmark = pytest.mark.gpu


@contextmanager
def no_waiting():
    """Whatever waits for the device is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def double(x):
    return x * 2


def train(steps, xs, lazy):
    """Outputs and gradients of some steps in two flushes."""
    hidden = [
        steps.call("torch.tanh", steps.call("torch.matmul", steps.input(x), lazy)) for x in xs
    ]
    rows = [steps.join(steps.part(h, 2), steps.part(h, 0), is_stack=True) for h in hidden]
    steps.flush(*rows)
    last = [steps.call("torch.sin", row) for row in rows[::3]]
    last += [
        steps.opaque("double", double, row, shapes=[(2, 4)]) for row in rows[1::3] + rows[2::3]
    ]
    steps.flush(*last)
    outputs = steps.outputs(*last)
    loss = sum(output.square().sum() for output in outputs)
    return last, [*outputs, *torch.autograd.grad(loss, [lazy.tensor, *xs])]


def results(device):
    generator = torch.Generator().manual_seed(0)
    w, *xs = (
        torch.randn(shape, generator=generator).to(device).requires_grad_()
        for shape in [(4, 4)] + [(3, 4)] * 20
    )
    steps = Steps(device=device)
    lazy = steps.weight(w)
    train(steps, xs, lazy)  # builds what is launched
    with no_waiting():
        last, found = train(steps, xs, lazy)
    torch.testing.assert_close(
        steps.read(*last), [each.detach().cpu() for each in found[: len(last)]]
    )
    return [each.detach().cpu() for each in found]


def test_steps_on_the_device_agree_with_the_cpu_and_do_not_wait():
    torch.testing.assert_close(results("cuda"), results("cpu"), rtol=1e-3, atol=1e-4)
