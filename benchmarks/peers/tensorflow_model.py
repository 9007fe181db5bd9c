"""What the models in TensorFlow share: variables, one traced function, SGD, results.

A model says what it computes from a structure, and its loss. Structure is made inside the timed
part, by numpy; tracing comes before it.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.parameters import LEARNING_RATE, fixed_of, trained_of
from benchmarks.peers.serve import limit_threads

limit_threads(int(sys.argv[2]))
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import tensorflow as tf  # noqa: E402

#: Workers take the system from here, as threads are limited before it is imported.
__all__ = ["INDICES", "Model", "prepare_model", "tf"]

INDICES = tf.TensorSpec([None], tf.int64)


class Model(ABC):
    """The parameters, and the functions of TensorFlow over them."""

    def __init__(self, problem: dict[str, Any], arrays: int) -> None:
        self.trained = {name: tf.Variable(value) for name, value in trained_of(problem).items()}
        fixed = {name: tf.constant(value) for name, value in fixed_of(problem).items()}
        self.parameters = {**fixed, **self.trained}
        body = self._train if problem["training"] else self.encode
        #: One function for all structures, as sizes are left open.
        self.run = tf.function(body, input_signature=[INDICES] * arrays)

    @abstractmethod
    def encode(self, *structure: Any) -> Any:
        """What inference returns."""

    @abstractmethod
    def loss_of(self, encoded: Any) -> Any:
        """What training goes down."""

    def linear(self, name: str, rows: Any) -> Any:
        """A layer of the model."""
        product = tf.matmul(rows, self.parameters[f"{name}.weight"], transpose_b=True)
        return product + self.parameters[f"{name}.bias"]

    def _train(self, *structure: Any) -> Any:
        """The loss and the gradients, after a step of SGD."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.encode(*structure))
        variables = list(self.trained.values())
        gradients = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients):
            if isinstance(gradient, tf.IndexedSlices):
                moved = tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices)
                variable.scatter_sub(moved)
            else:
                variable.assign_sub(LEARNING_RATE * gradient)
        return [loss, *gradients]


def prepare_model(
    model: Model, structure: Callable[[], Sequence[Any]], *, training: bool
) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""

    def call() -> Any:
        return model.run(*(tf.constant(indices) for indices in structure()))

    def work() -> None:
        found = call()
        (found[0] if training else found).numpy()

    def results() -> Sequence[Any]:
        found = call()
        return [tf.convert_to_tensor(value).numpy() for value in (found if training else [found])]

    return work, results
