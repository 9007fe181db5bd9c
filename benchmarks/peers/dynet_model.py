"""What the models in DyNet share: parameters, automatic batching, SGD, results.

A model builds the graph of its outputs anew for every call, as any program in DyNet does; there is
no other structure.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.parameters import LEARNING_RATE, fixed_of, trained_of
from benchmarks.peers.serve import limit_threads

limit_threads(int(sys.argv[2]))

import dynet_config  # noqa: E402

dynet_config.set(mem=2048, autobatch=1, random_seed=1)

import dynet as dy  # noqa: E402

#: Workers take the system from here, as threads are limited before it is imported.
__all__ = ["Model", "dy", "prepare_model"]


class Model(ABC):
    """The parameters, and graphs over them."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.collection = dy.ParameterCollection()
        #: By name, the embedding among them.
        self.parameters = {
            name: self._parameter(name, value)
            for name, value in {**fixed_of(problem), **trained_of(problem)}.items()
        }
        self.trained = [self.parameters[name] for name in trained_of(problem)]
        self.trains_embedding = "embedding.weight" in trained_of(problem)
        self.trainer = dy.SimpleSGDTrainer(self.collection, LEARNING_RATE)
        self.trainer.set_clip_threshold(0)

    def _parameter(self, name: str, value: Any) -> Any:
        if name == "embedding.weight":
            return self.collection.lookup_parameters_from_numpy(np.ascontiguousarray(value))
        return self.collection.parameters_from_numpy(value)

    @abstractmethod
    def outputs(self) -> list[Any]:
        """What inference returns, a row each, in the graph that has just been begun."""

    @abstractmethod
    def loss_of(self, outputs: list[Any]) -> Any:
        """What training goes down."""

    def word(self, token: int) -> Any:
        """A word's vector."""
        return dy.lookup(self.parameters["embedding.weight"], token, update=self.trains_embedding)

    def linear(self, name: str, inputs: Any) -> Any:
        """A layer of the model."""
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return dy.affine_transform([bias, weight, inputs])

    def backward(self) -> float:
        """The loss; gradients stay in the parameters."""
        dy.renew_cg()
        loss = self.loss_of(self.outputs())
        value: float = loss.value()
        loss.backward()
        return value

    def infer(self) -> Any:
        """All outputs."""
        dy.renew_cg()
        outputs = self.outputs()
        dy.forward(outputs)
        return np.stack([row.npvalue() for row in outputs], dtype=np.float32, casting="same_kind")


def prepare_model(
    model: Model, *, training: bool
) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""

    def train() -> None:
        model.backward()
        model.trainer.update()

    def gradients() -> Sequence[Any]:
        loss = np.float32(model.backward())
        found = [each.grad_as_array().astype(np.float32) for each in model.trained]
        model.trainer.update()  # also forgets the gradients
        return [loss, *found]

    def infer() -> None:
        model.infer()

    return (train, gradients) if training else (infer, lambda: [model.infer()])
