"""The binary Tree-LSTM in JAX: `lax.scan` over chunks of levels, padded, under one jit.

Shapes are rounded up, so that few structures are compiled anew. Structure is made inside the timed
part; compilation comes before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.serve import limit_threads, serve

limit_threads(int(sys.argv[2]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks.peers.tree_problem import (  # noqa: E402
    LEARNING_RATE,
    PARAMETERS,
    Forest,
    forest_of,
    levels_of,
    parameters_of,
)


class Chunks(NamedTuple):
    """A height is cut into chunks of one width; the state rows of a chunk follow each other."""

    tokens: Any
    left: Any
    right: Any
    roots: Any


def chunks_of(forest: Forest, width: int) -> Chunks:
    """Padded so that many forests have the same shapes; padding reads row 0."""
    levels = levels_of(forest)
    leaves = _round_up(len(levels.tokens), 2 * width)
    place = np.arange(leaves + len(levels.left))
    cuts, start = [], leaves
    for begin, end in zip(levels.bounds[:-1], levels.bounds[1:]):
        count = -(-(end - begin) // width) * width
        place[len(levels.tokens) + begin : len(levels.tokens) + end] = start + np.arange(
            end - begin
        )
        cuts.append((begin, end, start - leaves))
        start += count
    rows = _round_up(start - leaves, 4 * width)
    left, right = np.zeros((2, rows), dtype=np.int32)
    for begin, end, at in cuts:
        left[at : at + end - begin] = place[levels.left[begin:end]]
        right[at : at + end - begin] = place[levels.right[begin:end]]
    tokens = np.zeros(leaves, dtype=np.int32)
    tokens[: len(levels.tokens)] = levels.tokens
    shape = (-1, width)
    roots = place[levels.roots].astype(np.int32)
    return Chunks(tokens, left.reshape(shape), right.reshape(shape), roots)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step


def encode(parameters: Any, chunks: Chunks) -> Any:
    """h of every root."""
    words = parameters["embedding.weight"][chunks.tokens]
    gates = words @ parameters["leaf_gates.weight"].T + parameters["leaf_gates.bias"]
    write, output, new = jnp.split(gates, 3, 1)
    c = jax.nn.sigmoid(write) * jnp.tanh(new)
    h = jax.nn.sigmoid(output) * jnp.tanh(c)
    room = jnp.zeros((chunks.left.size, h.shape[1]))
    start = jnp.concatenate([h, room]), jnp.concatenate([c, room]), len(h)
    weight, bias = parameters["cell_gates.weight"].T, parameters["cell_gates.bias"]

    def combine(state: Any, rows: Any) -> Any:
        (h, c, at), (left, right) = state, rows
        gates = jnp.concatenate([h[left], h[right]], 1) @ weight + bias
        write, keep_left, keep_right, output, new = jnp.split(gates, 5, 1)
        new_c = jax.nn.sigmoid(write) * jnp.tanh(new)
        new_c += jax.nn.sigmoid(keep_left) * c[left] + jax.nn.sigmoid(keep_right) * c[right]
        new_h = jax.nn.sigmoid(output) * jnp.tanh(new_c)
        h = jax.lax.dynamic_update_slice(h, new_h, (at, 0))
        c = jax.lax.dynamic_update_slice(c, new_c, (at, 0))
        return (h, c, at + len(left)), None

    (h, _, _), _ = jax.lax.scan(combine, start, (chunks.left, chunks.right))
    return h[chunks.roots]


def loss_of(parameters: Any, chunks: Chunks, weights: Any) -> Any:
    """As `training.loss_of`."""
    return (encode(parameters, chunks) @ weights).mean()


gradients_of = jax.value_and_grad(loss_of)


@partial(jax.jit, donate_argnums=0)
def descend(parameters: Any, chunks: Chunks, weights: Any) -> Any:
    """The loss, and the parameters after a step of SGD, in the place of the old ones."""
    loss, gradients = gradients_of(parameters, chunks, weights)
    return loss, jax.tree.map(lambda value, by: value - LEARNING_RATE * by, parameters, gradients)


class Trees:
    """The parameters as they change, and one batch."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.parameters = jax.tree.map(jnp.array, parameters_of(problem))
        self.forest, self.weights = forest_of(problem), jnp.array(problem["weights"])
        trees = len(self.forest.roots)
        self.width = 4 if trees < 8 else 32 if trees < 64 else 128

    def chunks(self) -> Chunks:
        """The structure, made anew."""
        return chunks_of(self.forest, self.width)

    def train(self) -> None:
        """One step."""
        loss, self.parameters = descend(self.parameters, self.chunks(), self.weights)
        jax.block_until_ready((loss, self.parameters))


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    trees, infer = Trees(problem), jax.jit(encode)

    def encoded() -> Any:
        return np.asarray(infer(trees.parameters, trees.chunks()))

    def gradients() -> Sequence[Any]:
        loss, found = jax.jit(gradients_of)(trees.parameters, trees.chunks(), trees.weights)
        return [np.asarray(loss), *(np.asarray(found[name]) for name in PARAMETERS)]

    def inference() -> None:
        encoded()

    if problem["training"]:
        return trees.train, gradients
    return inference, lambda: [encoded()]


if __name__ == "__main__":
    serve(prepare, f"JAX {jax.__version__}")
