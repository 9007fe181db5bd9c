"""Ten programs in plain Python control flow, each with the arguments of one instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from penstock.data import random_binary_trees


class Example(NamedTuple):
    """A program before it is one, and what to call it with."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def tree_lstm(hidden: int = 64) -> Example:
    """A binary Tree-LSTM by recursion."""
    embedding, gates = nn.Embedding(100, 2 * hidden), nn.Linear(2 * hidden, 5 * hidden)

    def encode(tree: Any, i: Any) -> tuple[Tensor, Tensor]:
        if tree.is_leaf(i):
            h, c = embedding(tree.token[i]).chunk(2)
            return h, c
        left_h, left_c = encode(tree, tree.left(i))
        right_h, right_c = encode(tree, tree.right(i))
        take, out, new, first, second = gates(torch.cat([left_h, right_h])).chunk(5)
        c = torch.sigmoid(first) * left_c + torch.sigmoid(second) * right_c
        c = c + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(out) * torch.tanh(c), c

    (tree,) = random_binary_trees(1, vocabulary=100, seed=1)
    return Example(encode, (tree, tree.root))


def newton() -> Example:
    """Square roots until the residual is small."""

    def root(a: Tensor) -> Tensor:
        x = a
        while (x * x - a).abs() > 1e-4 * a:
            x = (x + a / x) / 2
        return x

    return Example(root, (torch.tensor(7.0),))


def collatz() -> Example:
    """Steps until a number reaches one."""

    def steps(n: Any) -> Any:
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    return Example(steps, (27,))


def gru_outputs() -> Example:
    """All states of a GRU, in a list that grows."""
    cell = nn.GRUCell(8, 8)

    def states(xs: Tensor) -> Tensor:
        h, outputs = torch.zeros(8), []
        for x in xs:
            h = cell(x, h)
            outputs.append(h)
        return torch.stack(outputs)

    return Example(states, (torch.randn(6, 8),))


def greedy_decoding() -> Example:
    """The likeliest symbol each step, until an end symbol."""
    embedding, cell, output = nn.Embedding(9, 8), nn.GRUCell(8, 8), nn.Linear(8, 9)

    def decode(h: Tensor) -> tuple[Tensor, Any]:
        token, score, count = torch.tensor(1), h.new_zeros(()), 0
        while token != 0 and count < 12:
            h = cell(embedding(token), h)
            scores = torch.log_softmax(output(h), -1)
            token = scores.argmax()
            score = score + scores.max()
            count += 1
        return score, count

    return Example(decode, (torch.randn(8),))


def early_exit() -> Example:
    """Layers that are left as soon as one of them is confident."""
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def classify(x: Tensor) -> tuple[Tensor, Any]:
        for depth, layer in enumerate(layers):
            x = torch.tanh(layer(x)) + x
            if torch.softmax(x, 0).max() > 0.6:
                return x, depth
        return x, len(layers)

    return Example(classify, (torch.randn(8),))


def interpreter() -> Example:
    """A machine with four instructions."""

    def run(code: Tensor, args: Tensor, acc: Tensor) -> Tensor:
        pc = 0
        while pc < len(code):
            match code[pc]:
                case 0:
                    acc = acc + args[pc]
                case 1:
                    acc = acc * args[pc]
                case 2:
                    acc = -acc
                case _:
                    acc = acc - 1
            pc += 1
        return acc

    return Example(run, (torch.randint(0, 4, (9,)), torch.randn(9), torch.tensor(1.0)))


def bisection() -> Example:
    """The root of a cubic."""

    def root(a: Tensor) -> tuple[Tensor, Tensor]:
        low, high = -1 - a.abs(), 1 + a.abs()
        while high - low > 1e-3:
            middle = (low + high) / 2
            if middle**3 + middle < a:
                low = middle
            else:
                high = middle
        return low, high

    return Example(root, (torch.tensor(3.0),))


def stack_machine() -> Example:
    """Sums by a stack: a negative number takes the two on top."""

    def evaluate(xs: Tensor) -> Tensor:
        stack: list[Tensor] = []
        for x in xs:
            if x < 0 and len(stack) > 1:
                stack.append(stack.pop() + stack.pop())
            else:
                stack.append(x)
        return torch.stack(stack)

    return Example(evaluate, (torch.tensor([1.0, 2.0, -1.0, 4.0, -1.0]),))


def first_match() -> Example:
    """A search through two nested loops."""

    def search(xs: Tensor, ys: Tensor) -> tuple[Any, Any]:
        for i, x in enumerate(xs):
            for j, y in enumerate(ys):
                if x + y > 3:
                    return i, j
        return -1, -1

    return Example(search, (torch.randn(5), torch.randn(7)))


EXAMPLES: dict[str, Callable[[], Example]] = {
    build.__name__: build
    for build in (
        tree_lstm,
        newton,
        collatz,
        gru_outputs,
        greedy_decoding,
        early_exit,
        interpreter,
        bisection,
        stack_machine,
        first_match,
    )
}
