"""Relatedness by child-sum Tree-LSTM in TensorFlow: `tf.while_loop` over levels, segment sums.

What words alone give to gates is made for all words at once and cut into one element a level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.pair_problem import Levels, entropy_of, forest_of, levels_of
from benchmarks.peers.serve import serve
from benchmarks.peers.tensorflow_model import Model, prepare_model, tf


class Pairs(Model):
    """Log-probabilities of the scores."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem, arrays=len(Levels._fields))
        self.hidden = problem["encoder.child_forget.bias"].shape[0]
        self.targets = tf.constant(problem["targets"])
        self.entropy = entropy_of(problem["targets"])

    def encode(self, *structure: Any) -> Any:
        """All levels, then all pairs."""
        tokens, bounds, children, parents, child_bounds, roots = structure
        words = tf.gather(self.parameters["embedding.weight"], tokens)
        leaves = bounds[1]
        gates = self.linear("encoder.word_gates", words)
        forget = self.linear("encoder.word_forget", words[leaves:])
        sizes = bounds[1:] - bounds[:-1]
        start = self._state(gates[:leaves] + self.parameters["encoder.child_gates.bias"], 0.0)
        states = tf.TensorArray(
            tf.float32,
            size=tf.shape(tokens)[0],
            clear_after_read=False,
            element_shape=[2 * self.hidden],
        ).scatter(tf.range(tf.shape(start)[0]), start)
        level_gates = _by_level(gates[leaves:], sizes[1:], 3 * self.hidden)
        level_forget = _by_level(forget, sizes[1:], self.hidden)

        def combine(height: Any, states: Any) -> Any:
            begin, end = child_bounds[height], child_bounds[height + 1]
            first, last = bounds[height + 1], bounds[height + 2]
            below = states.gather(tf.cast(children[begin:end], tf.int32))
            segments = parents[begin:end] - first
            new = self._cell(level_gates.read(height), level_forget.read(height), below, segments)
            rows = tf.range(tf.cast(first, tf.int32), tf.cast(last, tf.int32))
            return height + 1, states.scatter(rows, new)

        heights = tf.shape(sizes)[0] - 1
        _, states = tf.while_loop(lambda height, _: height < heights, combine, (0, states))
        h = states.gather(tf.cast(roots, tf.int32))[:, : self.hidden]
        return self._similarity(*tf.split(h, 2, 0))

    def loss_of(self, encoded: Any) -> Any:
        """As `child_sum.loss_of`."""
        pairs = tf.cast(tf.shape(encoded)[0], tf.float32)
        return (self.entropy - tf.reduce_sum(self.targets * encoded)) / pairs

    def _cell(self, gates: Any, forget: Any, below: Any, segments: Any) -> Any:
        h, c = tf.split(below, 2, 1)
        forget = self.linear("encoder.child_forget", h) + tf.gather(forget, segments)
        sums = tf.math.segment_sum(tf.concat([h, tf.sigmoid(forget) * c], 1), segments)
        h_sum, kept = tf.split(sums, 2, 1)
        return self._state(gates + self.linear("encoder.child_gates", h_sum), kept)

    def _state(self, gates: Any, kept: Any) -> Any:
        """h and c side by side."""
        write, output, new = tf.split(gates, 3, 1)
        c = tf.sigmoid(write) * tf.tanh(new) + kept
        return tf.concat([tf.sigmoid(output) * tf.tanh(c), c], 1)

    def _similarity(self, left: Any, right: Any) -> Any:
        features = tf.concat([left * right, tf.abs(left - right)], 1)
        hidden = tf.sigmoid(self.linear("similarity.compare", features))
        return tf.nn.log_softmax(self.linear("similarity.score", hidden))


def _by_level(rows: Any, sizes: Any, width: int) -> Any:
    array = tf.TensorArray(
        tf.float32, size=tf.shape(sizes)[0], infer_shape=False, element_shape=[None, width]
    )
    return array.split(rows, sizes)


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    pairs, forest = Pairs(problem), forest_of(problem)
    return prepare_model(pairs, lambda: levels_of(forest), training=problem["training"])


if __name__ == "__main__":
    serve(prepare, f"TensorFlow {tf.__version__}")
