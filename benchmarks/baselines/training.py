"""A training step, the same for every candidate: only the forward computation differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
from torch import Tensor, nn

Forward = Callable[[], Tensor]

#: So small that all candidates see one model, however often they are run.
LEARNING_RATE = 1e-12


def loss_of(forward: Forward, weights: Tensor) -> Tensor:
    """A loss that gives every element of the outputs a gradient of its own size."""
    return (forward() @ weights).mean()


def loss_and_gradients(model: nn.Module, forward: Forward, weights: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward: the loss, and its gradients by all parameters."""
    loss = loss_of(forward, weights)
    return loss, *torch.autograd.grad(loss, list(model.parameters()))


def training_step(model: nn.Module, forward: Forward, weights: Tensor) -> tuple[Tensor, ...]:
    """Forward, backward and SGD; the loss and the gradients."""
    return descend(model, loss_of(forward, weights))


@lru_cache(maxsize=8)
def trained(model: nn.Module) -> tuple[nn.Parameter, ...]:
    """The parameters that are trained, looked for once, as an optimizer does."""
    return tuple(parameter for parameter in model.parameters() if parameter.requires_grad)


def descend(model: nn.Module, loss: Tensor) -> tuple[Tensor, ...]:
    """Backward and SGD, for the parameters that are trained; the loss and the gradients."""
    return descend_along(model, loss, *torch.autograd.grad(loss, trained(model)))


@torch.no_grad()
def descend_along(model: nn.Module, loss: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
    """SGD with gradients that are there; the loss and the gradients."""
    for parameter, gradient in zip(trained(model), gradients, strict=True):
        parameter.add_(gradient, alpha=-LEARNING_RATE)
    return loss, *gradients


def warm_up(calls: Iterable[Callable[[], object]], times: int = 10) -> None:
    """Make calls as often as it takes until they run as in the middle of training: plans are kept,
    and those that repeat have become CUDA graphs.
    """
    for call in calls:
        for _ in range(times):
            call()
