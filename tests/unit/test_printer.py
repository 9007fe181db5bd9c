from __future__ import annotations

import torch
from torch import nn

from penstock.api.control_flow import cond, switch, while_loop
from penstock.api.function import function
from penstock.api.sequences import map_fn, scan
from penstock.capture.tensor_array import TensorArray
from penstock.data import Tree


def test_a_recursive_program_prints_as_short_text(golden) -> None:
    embedding, combine = nn.Embedding(10, 4), nn.Linear(8, 4)

    @function
    def encode(tree, i):
        return cond(
            tree.is_leaf(i),
            lambda: embedding(tree.token[i]),
            lambda: torch.tanh(
                combine(torch.cat([encode(tree, tree.left(i)), encode(tree, tree.right(i))]))
            ),
        )

    tree = Tree.from_nested(((7, 8), 9))
    golden("program_tree", str(encode.program(tree, tree.root)))


def test_loops_sequences_and_arrays_print_as_short_text(golden) -> None:
    @function
    def many_kinds(xs, k, n):
        total, ys = scan(lambda c, x: (c + x, c * 2), torch.zeros(2), xs)
        array = while_loop(
            lambda i, a: i < n,
            lambda i, a: (i + 1, a.write(i, xs[i])),
            (0, TensorArray(n)),
            maximum_iterations=9,
        )[1]
        each = map_fn(lambda x: torch.dropout(x, 0.5, True).sum(), xs)
        chosen = switch(k, [lambda: total, lambda: total[1:].expand(2), lambda: array.read(0)])
        return ys[1:], each, chosen, torch.zeros(xs.shape[0], 3)

    golden("program_many_kinds", str(many_kinds.program(torch.ones(4, 2), 1, 3)))
