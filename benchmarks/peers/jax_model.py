"""What the models in JAX share: parameters, SGD under one jit, results.

Structure is made inside the timed part, by numpy; compilation comes before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.parameters import LEARNING_RATE, fixed_of, trained_of
from benchmarks.peers.serve import limit_threads

limit_threads(int(sys.argv[2]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

#: Workers take the system from here, as threads are limited before it is imported.
__all__ = ["jax", "jnp", "linear", "prepare_model", "round_up"]

#: From parameters and a structure to what inference returns.
Encode = Callable[[Any, Any], Any]


def round_up(count: int, step: int) -> int:
    """The next multiple."""
    return -(-count // step) * step


def linear(parameters: Any, name: str, rows: Any) -> Any:
    """A layer of the model."""
    return rows @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def prepare_model(
    problem: dict[str, Any],
    encode: Encode,
    loss_of: Callable[[Any], Any],
    structure: Callable[[], Any],
) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    trained, fixed = (jax.tree.map(jnp.array, of(problem)) for of in (trained_of, fixed_of))
    infer = jax.jit(encode)

    def total(trained: Any, chunks: Any) -> Any:
        return loss_of(encode({**fixed, **trained}, chunks))

    gradients_of = jax.value_and_grad(total)

    @partial(jax.jit, donate_argnums=0)
    def descend(trained: Any, chunks: Any) -> Any:
        loss, found = gradients_of(trained, chunks)
        return loss, jax.tree.map(lambda value, by: value - LEARNING_RATE * by, trained, found)

    def train() -> None:
        nonlocal trained
        loss, trained = descend(trained, structure())
        jax.block_until_ready((loss, trained))

    def gradients() -> Sequence[Any]:
        loss, found = jax.jit(gradients_of)(trained, structure())
        return [np.asarray(loss), *(np.asarray(found[name]) for name in problem["trained"])]

    def encoded() -> Any:
        return np.asarray(infer({**fixed, **trained}, structure()))

    def inference() -> None:
        encoded()

    if problem["training"]:
        return train, gradients
    return inference, lambda: [encoded()]
