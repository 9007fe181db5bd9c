"""The binary Tree-LSTM in DyNet: recursion over each tree into one graph, batched automatically.

Building the graph is part of every call, as for any program in DyNet; there is no other structure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.peers.serve import limit_threads, serve

limit_threads(int(sys.argv[2]))

import dynet_config  # noqa: E402

dynet_config.set(mem=2048, autobatch=1, random_seed=1)

import dynet as dy  # noqa: E402

from benchmarks.peers.tree_problem import (  # noqa: E402
    LEARNING_RATE,
    PARAMETERS,
    forest_of,
    parameters_of,
)


class Trees:
    """The parameters, and recursion over nodes."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.collection = dy.ParameterCollection()
        table, *others = parameters_of(problem).values()
        self.lookup = self.collection.lookup_parameters_from_numpy(np.ascontiguousarray(table))
        self.parameters = [self.collection.parameters_from_numpy(value) for value in others]
        self.hidden = len(problem["weights"])
        self.weights = problem["weights"]
        # Python numbers: the recursion reads one at a time.
        forest = forest_of(problem)
        self.token, self.left, self.right, self.roots = (part.tolist() for part in forest)
        self.trainer = dy.SimpleSGDTrainer(self.collection, LEARNING_RATE)
        self.trainer.set_clip_threshold(0)

    def encode(self) -> list[Any]:
        """h of every root, in a new graph."""
        dy.renew_cg()
        return [self._node(root)[0] for root in self.roots]

    def loss(self) -> Any:
        """As `training.loss_of`."""
        states = self.encode()
        weights = dy.inputVector(self.weights)
        return dy.esum([dy.dot_product(h, weights) for h in states]) / len(states)

    def _node(self, node: int) -> tuple[Any, Any]:
        leaf_weight, leaf_bias, cell_weight, cell_bias = self.parameters
        size = self.hidden
        if self.left[node] < 0:
            gates = dy.affine_transform([leaf_bias, leaf_weight, self.lookup[self.token[node]]])
            write, output = dy.logistic(gates[:size]), dy.logistic(gates[size : 2 * size])
            c = dy.cmult(write, dy.tanh(gates[2 * size :]))
            return dy.cmult(output, dy.tanh(c)), c
        (left_h, left_c), (right_h, right_c) = (
            self._node(child) for child in (self.left[node], self.right[node])
        )
        inputs = dy.concatenate([left_h, right_h])
        gates = dy.affine_transform([cell_bias, cell_weight, inputs])
        opened = dy.logistic(gates[: 4 * size])
        c = dy.cmult(opened[:size], dy.tanh(gates[4 * size :]))
        c += dy.cmult(opened[size : 2 * size], left_c)
        c += dy.cmult(opened[2 * size : 3 * size], right_c)
        return dy.cmult(opened[3 * size :], dy.tanh(c)), c


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    trees = Trees(problem)

    def train() -> float:
        loss = trees.loss()
        value: float = loss.value()
        loss.backward()
        return value

    def infer() -> Any:
        states = trees.encode()
        dy.forward(states)
        return np.stack([h.npvalue() for h in states], dtype=np.float32, casting="same_kind")

    def work() -> None:
        if problem["training"]:
            train()
            trees.trainer.update()
        else:
            infer()

    def results() -> Sequence[Any]:
        if not problem["training"]:
            return [infer()]
        loss = np.float32(train())
        learned = (trees.lookup, *trees.parameters)
        gradients = [each.grad_as_array().astype(np.float32) for each in learned]
        trees.trainer.update()  # also forgets the gradients
        assert len(gradients) == len(PARAMETERS)
        return [loss, *gradients]

    return work, results


if __name__ == "__main__":
    serve(prepare, f"DyNet {version('dyNET38')}")
