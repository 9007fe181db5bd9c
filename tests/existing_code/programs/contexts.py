"""Grad modes, autocast and other contexts that code enters by itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.existing_code.harness import Table

TABLE = Table()


@TABLE.program
def no_grad_inside(make):
    w = make.tensor(3)

    def step(x):
        with torch.no_grad():
            scale = (x * w).norm()
            assert not scale.requires_grad
        return x * w / scale

    return step, make.tensors(3, 3)


@TABLE.program
def no_grad_as_a_decorator(make):
    w = make.tensor(3)

    @torch.no_grad()
    def target(x):
        return (x * w).softmax(-1)

    return lambda x: F.mse_loss(x * w, target(x)), make.tensors(3, 3)


@TABLE.program
def grad_enabled_inside_no_grad(make):
    w = make.tensor(3)

    def step(x):
        with torch.no_grad():
            a = x * w
            with torch.enable_grad():
                b = x * w
        return a + b.sin(), a

    return step, make.tensors(3, 3)


@TABLE.program
def inference_mode_inside(make):
    w = make.tensor(3)

    def step(x):
        with torch.inference_mode():
            best = (x * w).argmax().item()
        return x[best] * w

    return step, make.tensors(3, 3)


@TABLE.program
def a_read_inside_no_grad(make):
    w = make.tensor(3)

    def step(x):
        count = 0
        with torch.no_grad():
            while (x * w).norm() > 1:
                x = x / 2
                count += 1
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
        return x * w * count + w

    return step, make.tensors(4, 3)


@TABLE.program(tolerance=2e-2)
def autocast_inside(make):
    layer = make.module(nn.Linear(3, 2).float())

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x.float())
            assert y.dtype is torch.bfloat16
        return (y.double() * 2).tanh()

    return step, make.tensors(3, 3)


@TABLE.program
def set_grad_enabled_by_argument(make):
    w = make.tensor(3)

    def step(x, is_training):
        with torch.set_grad_enabled(is_training):
            return x * w

    return step, make.tensors(3, 3), [True, False, True]


@TABLE.program
def requires_grad_switched_off_for_an_input(make):
    w = make.tensor(3)
    return lambda x: (x * w).tanh(), make.tensors(3, 3, grad=False)
