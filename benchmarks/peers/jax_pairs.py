"""Relatedness by child-sum Tree-LSTM in JAX: `lax.scan` over padded chunks of levels, segment sums.

Shapes are rounded up, so that few structures are compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.jax_model import jax, jnp, linear, prepare_model, round_up
from benchmarks.peers.pair_problem import Forest, Levels, entropy_of, forest_of, levels_of
from benchmarks.peers.serve import serve


class Chunks(NamedTuple):
    """A height is cut into chunks of one width; the state rows of a chunk follow each other."""

    #: Tokens; padding is token 0.
    leaves: Any
    #: Tokens of the words of each chunk.
    words: Any
    #: For each chunk, the rows of all children; padding reads row 0.
    children: Any
    #: Which word of its chunk each belongs to; padding belongs to none.
    parents: Any
    roots: Any


def chunks_of(forest: Forest, width: int) -> Chunks:
    """Padded so that many forests have the same shapes."""
    levels = levels_of(forest)
    start = round_up(int(levels.bounds[1]), 2 * width)
    # Leaves have no children.
    first_child = np.searchsorted(levels.parents, np.arange(len(levels.tokens) + 1))
    most = int(np.diff(first_child).max(initial=1))
    room = max(2 * width, 1 << (most - 1).bit_length())
    cuts = list(_cuts(levels, first_child, width, room))
    count = round_up(len(cuts), 4)
    leaves, words = np.zeros(start, dtype=np.int32), np.zeros((count, width), dtype=np.int32)
    children = np.zeros((count, room), dtype=np.int32)
    parents = np.full((count, room), width, dtype=np.int32)
    place = np.arange(len(levels.tokens), dtype=np.int32)
    leaves[: levels.bounds[1]] = levels.tokens[: levels.bounds[1]]
    for number, (word, child) in enumerate(cuts):
        words[number, : word.stop - word.start] = levels.tokens[word]
        place[word] = start + number * width + np.arange(word.stop - word.start)
        children[number, : child.stop - child.start] = place[levels.children[child]]
        parents[number, : child.stop - child.start] = levels.parents[child] - word.start
    return Chunks(leaves, words, children, parents, place[levels.roots])


def _cuts(levels: Levels, first_child: Any, width: int, room: int) -> Iterator[tuple[slice, slice]]:
    """Words of one height and their children, as many as fit into a chunk."""
    for begin, end in pairwise(levels.bounds[1:].tolist()):
        while begin < end:
            fits = np.searchsorted(first_child, first_child[begin] + room, "right") - 1
            last = min(begin + width, end, int(fits))
            yield slice(begin, last), slice(first_child[begin], first_child[last])
            begin = last


def encode(parameters: Any, chunks: Chunks) -> Any:
    """Log-probabilities of the scores."""
    table = parameters["embedding.weight"]
    leaf_gates = linear(parameters, "encoder.word_gates", table[chunks.leaves])
    start = _state(leaf_gates + parameters["encoder.child_gates.bias"], 0)
    words = table[chunks.words]
    gates = linear(parameters, "encoder.word_gates", words)
    forgets = linear(parameters, "encoder.word_forget", words)
    width = chunks.words.shape[1]

    def combine(carried: Any, chunk: Any) -> Any:
        (states, at), (gates, forget, children, parents) = carried, chunk
        h, c = jnp.split(states[children], 2, 1)
        forget = forget.at[parents].get(mode="clip") + linear(parameters, "encoder.child_forget", h)
        added = jnp.concatenate([h, jax.nn.sigmoid(forget) * c], 1)
        h_sum, kept = jnp.split(
            jax.ops.segment_sum(added, parents, width, indices_are_sorted=True), 2, 1
        )
        new = _state(gates + linear(parameters, "encoder.child_gates", h_sum), kept)
        return (jax.lax.dynamic_update_slice(states, new, (at, 0)), at + width), None

    room = jnp.zeros((chunks.words.size, start.shape[1]))
    (states, _), _ = jax.lax.scan(
        combine,
        (jnp.concatenate([start, room]), len(start)),
        (gates, forgets, chunks.children, chunks.parents),
    )
    h = states[chunks.roots, : start.shape[1] // 2]
    return _similarity(parameters, *jnp.split(h, 2))


def _state(gates: Any, kept: Any) -> Any:
    """h and c side by side."""
    write, output, new = jnp.split(gates, 3, 1)
    c = jax.nn.sigmoid(write) * jnp.tanh(new) + kept
    return jnp.concatenate([jax.nn.sigmoid(output) * jnp.tanh(c), c], 1)


def _similarity(parameters: Any, left: Any, right: Any) -> Any:
    features = jnp.concatenate([left * right, abs(left - right)], 1)
    hidden = jax.nn.sigmoid(linear(parameters, "similarity.compare", features))
    return jax.nn.log_softmax(linear(parameters, "similarity.score", hidden))


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One step of training, or one batch of inference."""
    forest, targets = forest_of(problem), problem["targets"]
    entropy, pairs = entropy_of(targets), len(targets)
    width = 4 if pairs < 4 else 16 if pairs < 32 else 64

    def loss_of(encoded: Any) -> Any:
        """As `child_sum.loss_of`."""
        return (entropy - (targets * encoded).sum()) / pairs

    return prepare_model(problem, encode, loss_of, lambda: chunks_of(forest, width))


if __name__ == "__main__":
    serve(prepare, f"JAX {jax.__version__}")
