"""Programs that mix along dimensions of different size: attention, pooling, convolution, losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program

WIDTH, CLASSES = 3, 4
LENGTHS = (3, 1, 5, 5, 2, 7, 12)
PAIRS = ((3, 2), (1, 4), (5, 1), (5, 3), (2, 2), (9, 6), (6, 9))


def same(function: Any) -> Any:
    """The function as a program."""
    return ps.function(function)


@table_program(torch.float32, torch.float64)
def cross_attention(make: Maker) -> Case:
    """Every element of a target attends to every element of a source."""
    query = make.weight("query", WIDTH, WIDTH)

    def plain(source: Tensor, target: Tensor) -> Tensor:
        scores = (target @ query) @ source.T / math.sqrt(WIDTH)
        return torch.softmax(scores, -1) @ source

    rows = [(make.normal(n, WIDTH), make.normal(m, WIDTH)) for n, m in PAIRS]
    return Case(plain, same(plain), rows)


@table_program(torch.float64)
def causal_attention(make: Maker) -> Case:
    """Elements attend to themselves and to those before them."""

    def plain(x: Tensor) -> Tensor:
        later = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
        return (x @ x.T).masked_fill(later, -math.inf).softmax(1) @ x

    return Case(plain, same(plain), [(make.normal(n, WIDTH),) for n in LENGTHS])


@table_program(torch.float32, torch.float64)
def token_losses(make: Maker) -> Case:
    """The mean loss of all tokens but the first, each told by the one before."""
    table = make.weight("table", CLASSES, WIDTH)
    output = make.weight("output", WIDTH, CLASSES)

    def plain(tokens: Tensor) -> Tensor:
        told = torch.tanh(F.embedding(tokens[:-1], table)) @ output
        return F.cross_entropy(told, tokens[1:])

    return Case(plain, same(plain), [(make.integers(0, CLASSES, n + 1),) for n in LENGTHS])


@table_program(torch.float64)
def pooled(make: Maker) -> Case:
    """Means, maxima and norms of sequences, some without elements, put together."""
    weight = make.weight("weight", 2 * WIDTH, WIDTH)

    def plain(x: Tensor) -> Tensor:
        both = torch.cat([x.sum(0) / (1 + x.shape[0]), (x * x).sum(0)])
        return torch.tanh(both @ weight) * torch.logsumexp(F.pad(x, (0, 0, 1, 0)), 0)

    return Case(plain, same(plain), [(make.normal(n, WIDTH),) for n in (0, *LENGTHS)])


@table_program(torch.float64)
def convolved(make: Maker) -> Case:
    """A convolution along a sequence, and the greatest of what it gives."""
    kernel = make.weight("kernel", 2, WIDTH, 3)

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        made = F.conv1d(x.T, kernel, padding=1).T
        return made, made.amax(0)

    return Case(plain, same(plain), [(make.normal(n, WIDTH),) for n in LENGTHS])


@table_program(torch.float64)
def infinite_on_padding(make: Maker) -> Case:
    """Logarithms, roots and quotients, which have no finite derivative at zero."""

    def plain(x: Tensor, y: Tensor) -> Tensor:
        shares = x.abs() / x.abs().sum(0)
        return (shares.log() * shares.sqrt()).sum(0) + (y / x).sum(0)

    rows = [(make.uniform(0.5, 2, n, WIDTH), make.normal(n, WIDTH)) for n in LENGTHS]
    return Case(plain, same(plain), rows)


@table_program(torch.float64)
def attention_in_a_loop(make: Maker) -> Case:
    """A state that attends to a source again and again, for sources of different length."""
    mix = make.weight("mix", 2 * WIDTH, WIDTH)

    def step(memory: Tensor, h: Tensor) -> Tensor:
        context = torch.softmax(torch.tanh(memory + h) @ h, 0) @ memory
        return torch.tanh(torch.cat([h, context]) @ mix)

    def plain(memory: Tensor, h: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            h = step(memory, h)
        return h

    @ps.function
    def traced(memory: Tensor, h: Tensor, steps: Any) -> Tensor:
        body = lambda t, h: (t + 1, step(memory, h))  # noqa: E731 - as one writes it there
        return ps.while_loop(lambda t, h: t < steps, body, (0, h))[1]

    rows = [(make.normal(n, WIDTH), make.normal(WIDTH), m) for n, m in PAIRS]
    return Case(plain, traced, rows)


@table_program(torch.float64)
def once_per_size(make: Maker) -> Case:
    """Sorting has no padded form."""

    def plain(x: Tensor) -> Tensor:
        ordered = x.sort(0).values
        return (ordered * torch.arange(x.shape[0]).unsqueeze(1)).sum(0)

    return Case(plain, same(plain), [(make.normal(n, WIDTH),) for n in LENGTHS])
