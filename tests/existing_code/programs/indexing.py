"""Indexing and slicing: with ints, slices, None, masks, and integers that were computed."""

from __future__ import annotations

import torch

from tests.existing_code.harness import Table

TABLE = Table()

TABLE.one_liners(
    "index:",
    {
        "int": lambda x: x[1],
        "negative": lambda x: x[-1] * 2,
        "twice": lambda x: x[0][2],
        "tuple": lambda x: x[1, 2],
        "negative tuple": lambda x: x[-1, -2],
        "slice": lambda x: x[1:],
        "slice to negative": lambda x: x[:-1].sin(),
        "steps": lambda x: x[::2],
        "column": lambda x: x[:, 1],
        "columns": lambda x: x[:, 1:3],
        "none": lambda x: x[None],
        "none inside": lambda x: x[:, None, 0],
        "ellipsis": lambda x: x[..., 0],
        "empty slice": lambda x: x[3:],
        "slice beyond the end": lambda x: x[1:100],
        "list": lambda x: x[[0, 2, 0]],
        "tensor": lambda x: x[torch.tensor([2, 1])],
        "two tensors": lambda x: x[torch.tensor([0, 2]), torch.tensor([3, 1])],
        "mixed": lambda x: x[1:, torch.tensor([0, 0])],
        "zero dimensional tensor": lambda x: x[torch.tensor(1)],
        "mask": lambda x: x[x > 0],
        "mask of rows": lambda x: x[x[:, 0] > 0],
        "bool": lambda x: x[True],
        "computed int": lambda x: x[x[:, 0].argmax().item()],
        "computed tensor": lambda x: x[x[:, 0].argmax()],
        "computed row and column": lambda x: x[0, x[1].argmax()],
        "computed slice": lambda x: x[: int((x > 0).sum()) % 3 + 1],
        "computed indices": lambda x: x[x[:, 1].argsort()],
        "python max": lambda x: x[max(range(3), key=lambda i: float(x[i, 0]))],
        "unpacked": lambda x: (lambda a, b, c: a * b - c)(*x),
        "iterated": lambda x: [row * i for i, row in enumerate(x)],
        "zipped": lambda x: sum(a @ b for a, b in zip(x, x.flip(0), strict=True)),
        "reversed": lambda x: list(reversed(list(x))),
        "nested iteration": lambda x: sum(v * v for row in x for v in row),
        "comprehension with condition": lambda x: sum(row.sum() for row in x if row[0] > 0) + x[0],
        "a table by computed number": lambda x, w: w[(x.sum() > 0).long()],
    },
    3,
    4,
)


@TABLE.program
def parallel_lists_by_computed_position(make):
    table = make.tensors(4, 2)

    def look_up(scores):
        return table[scores.argmax()] + table[scores.argmin().item()]

    return look_up, make.tensors(3, 4)


@TABLE.program
def a_mask_of_another_length_in_each_instance(make):
    w = make.tensor(3, 3)

    def select(xs):
        chosen = xs[xs.sum(1) > 0]
        return torch.tanh(chosen @ w), chosen.shape[0], len(chosen)

    return select, make.sentences((4, 2, 6), 3)


@TABLE.program
def indexing_the_parameters(make):
    w = make.tensor(5, 3)
    return lambda i, j: w[i] * w[j] + w[i, 1] + w[j:].sum(0), [0, 2, 4], [1, 1, 3]


@TABLE.program
def a_real_tensor_indexed_by_a_recorded_one(make):
    w = make.tensor(5, 3)
    return lambda scores: w[scores.topk(2).indices].sum(0), make.tensors(3, 5)
