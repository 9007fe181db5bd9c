"""Scalar loops in TensorFlow: a masked `tf.while_loop` over all instances, compiled by XLA.

There is no structure to prepare; tracing and compilation come before the timed part.
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

from benchmarks.peers.loop_problem import NEAR, PROGRAMS  # noqa: E402


def collatz(n: Any) -> Any:
    """Rows that are done wait for the last."""

    def step(n: Any, count: Any) -> Any:
        after = tf.where(n % 2 == 0, n // 2, 3 * n + 1)
        goes_on = n != 1
        return tf.where(goes_on, after, n), count + tf.cast(goes_on, count.dtype)

    start = (n, tf.zeros_like(n))
    return tf.while_loop(lambda n, count: tf.reduce_any(n != 1), step, start)[1]


def relaxation(bound: int, *columns: Any) -> Any:
    """Final values, and the gradients of their sum."""
    x, target, rate = columns
    with tf.GradientTape() as tape:
        tape.watch(columns)
        (found,) = tf.while_loop(
            lambda x: tf.reduce_any(abs(target - x) > NEAR),
            lambda x: (tf.where(abs(target - x) > NEAR, x + rate * (target - x), x),),
            (x,),
            maximum_iterations=bound,
        )
        total = tf.reduce_sum(found)
    return found, *tape.gradient(total, columns)


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One call over all instances."""
    name = str(problem["program"])
    columns = [tf.constant(problem[column]) for column in PROGRAMS[name][1]]
    if name == "relaxation":
        bound = int(problem["bound"])
        code: Any = lambda *columns: relaxation(bound, *columns)  # noqa: E731
    else:
        code = collatz
    run = tf.function(code, jit_compile=True)

    def results() -> Sequence[Any]:
        found = run(*columns)
        whole = found if isinstance(found, tuple) else (found,)
        return [value.numpy() for value in whole]

    def work() -> None:
        results()

    return work, results


if __name__ == "__main__":
    serve(prepare, f"TensorFlow {tf.__version__}, XLA")
