"""The binary Tree-LSTM in TensorFlow: `tf.while_loop` over levels, states in TensorArrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.serve import serve
from benchmarks.peers.tensorflow_model import Model, prepare_model, tf
from benchmarks.peers.tree_problem import Levels, forest_of, levels_of


class Trees(Model):
    """h of every root."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem, arrays=len(Levels._fields))
        self.weights = tf.constant(problem["weights"])
        self.hidden = len(problem["weights"])

    def encode(self, *structure: Any) -> Any:
        """All levels."""
        tokens, left, right, bounds, roots = structure
        words = tf.gather(self.parameters["embedding.weight"], tokens)
        write, output, new = tf.split(self.linear("leaf_gates", words), 3, 1)
        c = tf.sigmoid(write) * tf.tanh(new)
        h = tf.sigmoid(output) * tf.tanh(c)
        leaves = tf.shape(tokens)[0]
        arrays = [self._array(states, leaves + tf.shape(left)[0]) for states in (h, c)]

        def combine(height: Any, all_h: Any, all_c: Any) -> Any:
            begin, end = bounds[height], bounds[height + 1]
            first, second = (tf.cast(rows[begin:end], tf.int32) for rows in (left, right))
            h, c = self._cell(*(a.gather(i) for i in (first, second) for a in (all_h, all_c)))
            rows = tf.range(tf.cast(begin, tf.int32), tf.cast(end, tf.int32)) + leaves
            return height + 1, all_h.scatter(rows, h), all_c.scatter(rows, c)

        heights = tf.shape(bounds)[0] - 1
        _, all_h, _ = tf.while_loop(lambda height, *_: height < heights, combine, (0, *arrays))
        return all_h.gather(tf.cast(roots, tf.int32))

    def loss_of(self, encoded: Any) -> Any:
        """As `training.loss_of`."""
        return tf.reduce_mean(tf.linalg.matvec(encoded, self.weights))

    def _array(self, states: Any, size: Any) -> Any:
        array = tf.TensorArray(
            tf.float32, size=size, clear_after_read=False, element_shape=[self.hidden]
        )
        return array.scatter(tf.range(tf.shape(states)[0]), states)

    def _cell(self, left_h: Any, left_c: Any, right_h: Any, right_c: Any) -> Any:
        gates = self.linear("cell_gates", tf.concat([left_h, right_h], 1))
        write, keep_left, keep_right, output, new = tf.split(gates, 5, 1)
        c = tf.sigmoid(write) * tf.tanh(new)
        c += tf.sigmoid(keep_left) * left_c + tf.sigmoid(keep_right) * right_c
        return tf.sigmoid(output) * tf.tanh(c), c


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    trees, forest = Trees(problem), forest_of(problem)
    return prepare_model(trees, lambda: levels_of(forest), training=problem["training"])


if __name__ == "__main__":
    serve(prepare, f"TensorFlow {tf.__version__}")
