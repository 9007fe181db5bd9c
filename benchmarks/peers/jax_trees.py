"""The binary Tree-LSTM in JAX: `lax.scan` over chunks of levels, padded, under one jit.

Shapes are rounded up, so that few structures are compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.jax_model import jax, jnp, linear, prepare_model, round_up
from benchmarks.peers.serve import serve
from benchmarks.peers.tree_problem import Forest, forest_of, levels_of


class Chunks(NamedTuple):
    """A height is cut into chunks of one width; the state rows of a chunk follow each other."""

    tokens: Any
    left: Any
    right: Any
    roots: Any


def chunks_of(forest: Forest, width: int) -> Chunks:
    """Padded so that many forests have the same shapes; padding reads row 0."""
    levels = levels_of(forest)
    leaves = round_up(len(levels.tokens), 2 * width)
    place = np.arange(leaves + len(levels.left))
    cuts, start = [], leaves
    for begin, end in zip(levels.bounds[:-1], levels.bounds[1:]):
        count = -(-(end - begin) // width) * width
        place[len(levels.tokens) + begin : len(levels.tokens) + end] = start + np.arange(
            end - begin
        )
        cuts.append((begin, end, start - leaves))
        start += count
    rows = round_up(start - leaves, 4 * width)
    left, right = np.zeros((2, rows), dtype=np.int32)
    for begin, end, at in cuts:
        left[at : at + end - begin] = place[levels.left[begin:end]]
        right[at : at + end - begin] = place[levels.right[begin:end]]
    tokens = np.zeros(leaves, dtype=np.int32)
    tokens[: len(levels.tokens)] = levels.tokens
    shape = (-1, width)
    roots = place[levels.roots].astype(np.int32)
    return Chunks(tokens, left.reshape(shape), right.reshape(shape), roots)


def encode(parameters: Any, chunks: Chunks) -> Any:
    """h of every root."""
    words = parameters["embedding.weight"][chunks.tokens]
    write, output, new = jnp.split(linear(parameters, "leaf_gates", words), 3, 1)
    c = jax.nn.sigmoid(write) * jnp.tanh(new)
    h = jax.nn.sigmoid(output) * jnp.tanh(c)
    room = jnp.zeros((chunks.left.size, h.shape[1]))
    start = jnp.concatenate([h, room]), jnp.concatenate([c, room]), len(h)

    def combine(state: Any, rows: Any) -> Any:
        (h, c, at), (left, right) = state, rows
        gates = linear(parameters, "cell_gates", jnp.concatenate([h[left], h[right]], 1))
        write, keep_left, keep_right, output, new = jnp.split(gates, 5, 1)
        new_c = jax.nn.sigmoid(write) * jnp.tanh(new)
        new_c += jax.nn.sigmoid(keep_left) * c[left] + jax.nn.sigmoid(keep_right) * c[right]
        new_h = jax.nn.sigmoid(output) * jnp.tanh(new_c)
        h = jax.lax.dynamic_update_slice(h, new_h, (at, 0))
        c = jax.lax.dynamic_update_slice(c, new_c, (at, 0))
        return (h, c, at + len(left)), None

    (h, _, _), _ = jax.lax.scan(combine, start, (chunks.left, chunks.right))
    return h[chunks.roots]


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    forest, weights = forest_of(problem), problem["weights"]
    trees = len(forest.roots)
    width = 4 if trees < 8 else 32 if trees < 64 else 128

    def loss_of(encoded: Any) -> Any:
        """As `training.loss_of`."""
        return (encoded @ weights).mean()

    return prepare_model(problem, encode, loss_of, lambda: chunks_of(forest, width))


if __name__ == "__main__":
    serve(prepare, f"JAX {jax.__version__}")
