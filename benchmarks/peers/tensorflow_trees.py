"""The binary Tree-LSTM in TensorFlow: `tf.while_loop` over levels, states in TensorArrays.

One `tf.function` for all structures, as sizes are left open. Structure is made inside the timed
part; tracing comes before it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.serve import limit_threads, serve

limit_threads(int(sys.argv[2]))
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import tensorflow as tf  # noqa: E402

from benchmarks.peers.tree_problem import (  # noqa: E402
    LEARNING_RATE,
    forest_of,
    levels_of,
    parameters_of,
)

INDICES = tf.TensorSpec([None], tf.int64)


class Trees:
    """The parameters, and the functions of TensorFlow over them."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.parameters = {
            name: tf.Variable(value) for name, value in parameters_of(problem).items()
        }
        self.weights = tf.constant(problem["weights"])
        self.hidden = len(problem["weights"])
        signature = [INDICES] * 5
        self.infer = tf.function(self.encode, input_signature=signature)
        self.train = tf.function(self._train, input_signature=signature)

    def encode(self, tokens: Any, left: Any, right: Any, bounds: Any, roots: Any) -> Any:
        """h of every root."""
        words = tf.gather(self.parameters["embedding.weight"], tokens)
        gates = tf.matmul(words, self.parameters["leaf_gates.weight"], transpose_b=True)
        write, output, new = tf.split(gates + self.parameters["leaf_gates.bias"], 3, 1)
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

    def _array(self, states: Any, size: Any) -> Any:
        array = tf.TensorArray(
            tf.float32, size=size, clear_after_read=False, element_shape=[self.hidden]
        )
        return array.scatter(tf.range(tf.shape(states)[0]), states)

    def _cell(self, left_h: Any, left_c: Any, right_h: Any, right_c: Any) -> Any:
        inputs = tf.concat([left_h, right_h], 1)
        gates = tf.matmul(inputs, self.parameters["cell_gates.weight"], transpose_b=True)
        gates = tf.split(gates + self.parameters["cell_gates.bias"], 5, 1)
        write, keep_left, keep_right, output, new = gates
        c = tf.sigmoid(write) * tf.tanh(new)
        c += tf.sigmoid(keep_left) * left_c + tf.sigmoid(keep_right) * right_c
        return tf.sigmoid(output) * tf.tanh(c), c

    def _train(self, *structure: Any) -> Any:
        """The loss and the gradients, after a step of SGD."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(self.encode(*structure), self.weights))
        variables = list(self.parameters.values())
        gradients = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients):
            if isinstance(gradient, tf.IndexedSlices):
                moved = tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices)
                variable.scatter_sub(moved)
            else:
                variable.assign_sub(LEARNING_RATE * gradient)
        return [loss, *gradients]


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    trees, forest = Trees(problem), forest_of(problem)
    run = trees.train if problem["training"] else trees.infer

    def call() -> Any:
        return run(*(tf.constant(indices) for indices in levels_of(forest)))

    def work() -> None:
        found = call()
        (found[0] if problem["training"] else found).numpy()

    def results() -> Sequence[Any]:
        found = call()
        whole = found if problem["training"] else [found]
        return [tf.convert_to_tensor(value).numpy() for value in whole]

    return work, results


if __name__ == "__main__":
    serve(prepare, f"TensorFlow {tf.__version__}")
