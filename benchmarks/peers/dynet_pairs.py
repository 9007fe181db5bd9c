"""Relatedness by child-sum Tree-LSTM in DyNet: recursion into one graph, batched automatically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.dynet_model import Model, dy, prepare_model
from benchmarks.peers.pair_problem import entropy_of, forest_of
from benchmarks.peers.serve import serve


class Pairs(Model):
    """Log-probabilities of the scores."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.hidden = len(problem["encoder.child_forget.bias"])
        self.targets, self.entropy = problem["targets"], entropy_of(problem["targets"])
        # Python numbers: the recursion reads one at a time.
        self.token, parents, self.roots = (part.tolist() for part in forest_of(problem))
        self.children: list[list[int]] = [[] for _ in self.token]
        for word, parent in enumerate(parents):
            if parent >= 0:
                self.children[parent].append(word)

    def outputs(self) -> list[Any]:
        """One pair after the other."""
        count = len(self.roots) // 2
        sides = zip(self.roots[:count], self.roots[count:])
        return [
            self._similarity(self._word(left)[0], self._word(right)[0]) for left, right in sides
        ]

    def loss_of(self, outputs: list[Any]) -> Any:
        """As `child_sum.loss_of`."""
        found = dy.dot_product(dy.concatenate(outputs), dy.inputVector(self.targets.ravel()))
        return (dy.scalarInput(self.entropy) - found) / len(outputs)

    def _word(self, word: int) -> tuple[Any, Any]:
        """h and c, from those of the words below."""
        vector = self.word(self.token[word])
        gates = self.linear("encoder.word_gates", vector)
        if not self.children[word]:
            return self._state(gates + self.parameters["encoder.child_gates.bias"], None)
        forget = self.linear("encoder.word_forget", vector)
        below = [self._word(child) for child in self.children[word]]
        kept = [
            dy.cmult(dy.logistic(self.linear("encoder.child_forget", h) + forget), c)
            for h, c in below
        ]
        h_sum = dy.esum([h for h, _ in below])
        return self._state(gates + self.linear("encoder.child_gates", h_sum), dy.esum(kept))

    def _state(self, gates: Any, kept: Any) -> tuple[Any, Any]:
        size = self.hidden
        opened = dy.logistic(gates[: 2 * size])
        c = dy.cmult(opened[:size], dy.tanh(gates[2 * size :]))
        c = c if kept is None else c + kept
        return dy.cmult(opened[size:], dy.tanh(c)), c

    def _similarity(self, left: Any, right: Any) -> Any:
        features = dy.concatenate([dy.cmult(left, right), dy.abs(left - right)])
        hidden = dy.logistic(self.linear("similarity.compare", features))
        return dy.log_softmax(self.linear("similarity.score", hidden))


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    return prepare_model(Pairs(problem), training=problem["training"])


if __name__ == "__main__":
    serve(prepare, f"DyNet {version('dyNET38')}")
