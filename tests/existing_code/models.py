"""Models that read their own values: the number of steps of an instance depends on its data."""

from __future__ import annotations

import torch
from torch import nn


class ShiftReduce(nn.Module):
    """An encoder that chooses, by its own scores, between shifting a word and reducing a pair."""

    def __init__(self, size=4):
        super().__init__()
        self.size = size
        self.score = nn.Linear(3 * size, 2)
        self.reduce = nn.Linear(2 * size, size)

    def forward(self, sentence):
        buffer, stack, actions = list(sentence.split(1)), [], []
        empty = sentence.new_zeros(1, self.size)
        while buffer or len(stack) > 1:
            top = stack[-1] if stack else empty
            second = stack[-2] if len(stack) > 1 else empty
            nearest = buffer[0] if buffer else empty
            scores = self.score(torch.cat([top, second, nearest], dim=1))
            wants_shift = scores[0, 0] > scores[0, 1]
            if len(stack) < 2 or (buffer and wants_shift):
                actions.append("shift")
                stack.append(buffer.pop(0))
            else:
                actions.append("reduce")
                right, left = stack.pop(), stack.pop()
                stack.append(torch.tanh(self.reduce(torch.cat([left, right], dim=1))))
        return stack[0].squeeze(0), actions


class GreedyDecoder(nn.Module):
    """Emits words, each from the last one, until it emits the stop word 0."""

    def __init__(self, words=6, size=4, limit=12):
        super().__init__()
        self.limit = limit
        self.embedding = nn.Embedding(words, size)
        self.cell = nn.GRUCell(size, size)
        self.out = nn.Linear(size, words)

    def forward(self, h):
        word, words, total = 1, [], torch.zeros(())
        h = h.unsqueeze(0)
        while word != 0 and len(words) < self.limit:
            h = self.cell(self.embedding(torch.tensor([word])), h)
            scores = self.out(h).log_softmax(dim=1)
            word = scores.argmax(dim=1).item()
            total = total + scores[0, word]
            words.append(word)
        return total, words


class EarlyExit(nn.Module):
    """Layers of a classifier; an instance leaves as soon as it is sure."""

    def __init__(self, size=4, classes=3, depth=8, sure=0.62):
        super().__init__()
        self.sure = sure
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(size, classes) for _ in range(depth))

    def forward(self, x):
        depth = 0
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = torch.tanh(layer(x))
            probabilities = torch.softmax(head(x), dim=-1)
            if probabilities.max() > self.sure:
                break
            depth += 1
        return probabilities, depth


class NewtonRoot(nn.Module):
    """Iterates until the residual is small."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, a):
        x, count = a * self.scale, 0
        while (x * x - a).abs().item() > 1e-3 * float(a):
            x = (x + a / x) / 2
            count += 1
        return x, count


def shift_reduce(make):
    """The encoder and sentences of different lengths."""
    return make.module(ShiftReduce()), make.sentences((2, 5, 3, 7, 4, 6, 1, 7), 4)


def greedy_decoder(make):
    """The decoder and initial states."""
    return make.module(GreedyDecoder()), [4 * row for row in make.tensors(10, 4)]


def early_exit(make):
    """The network and its inputs."""
    rows = [row * (k + 1) / 6 for k, row in enumerate(make.tensors(12, 4))]
    return make.module(EarlyExit()), rows


def newton(make):
    """Square roots that need different numbers of steps."""
    rows = [torch.tensor(float(number)) for number in (2, 100, 1e4, 0.25, 3, 1e6, 7)]
    return make.module(NewtonRoot()), [make.leaf(row) for row in rows]


READERS = {
    "shift-reduce": shift_reduce,
    "greedy decoding": greedy_decoder,
    "early exit": early_exit,
    "newton": newton,
}
