"""The binary Tree-LSTM in DyNet: recursion over each tree into one graph, batched automatically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.dynet_model import Model, dy, prepare_model
from benchmarks.peers.serve import serve
from benchmarks.peers.tree_problem import forest_of


class Trees(Model):
    """h of every root."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.hidden = len(problem["weights"])
        self.weights = problem["weights"]
        # Python numbers: the recursion reads one at a time.
        forest = forest_of(problem)
        self.token, self.left, self.right, self.roots = (part.tolist() for part in forest)

    def outputs(self) -> list[Any]:
        """One tree after the other."""
        return [self._node(root)[0] for root in self.roots]

    def loss_of(self, outputs: list[Any]) -> Any:
        """As `training.loss_of`."""
        weights = dy.inputVector(self.weights)
        return dy.esum([dy.dot_product(h, weights) for h in outputs]) / len(outputs)

    def _node(self, node: int) -> tuple[Any, Any]:
        size = self.hidden
        if self.left[node] < 0:
            gates = self.linear("leaf_gates", self.word(self.token[node]))
            write, output = dy.logistic(gates[:size]), dy.logistic(gates[size : 2 * size])
            c = dy.cmult(write, dy.tanh(gates[2 * size :]))
            return dy.cmult(output, dy.tanh(c)), c
        (left_h, left_c), (right_h, right_c) = (
            self._node(child) for child in (self.left[node], self.right[node])
        )
        gates = self.linear("cell_gates", dy.concatenate([left_h, right_h]))
        opened = dy.logistic(gates[: 4 * size])
        c = dy.cmult(opened[:size], dy.tanh(gates[4 * size :]))
        c += dy.cmult(opened[size : 2 * size], left_c)
        c += dy.cmult(opened[2 * size : 3 * size], right_c)
        return dy.cmult(opened[3 * size :], dy.tanh(c)), c


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    return prepare_model(Trees(problem), training=problem["training"])


if __name__ == "__main__":
    serve(prepare, f"DyNet {version('dyNET38')}")
