"""A shift-reduce encoder that decides by its own scores what to do next.

Each decision is read from the device with `.item()`, so no two sentences take the same steps. Under
`ps.map` a sentence that reads waits alone; when all wait, one launch serves them all.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import nn

import penstock as ps

SHIFT, REDUCE = 0, 1


class Tracker(nn.Module):
    """Looks at two states and a word, and scores the two actions."""

    def __init__(self, size):
        super().__init__()
        self.cell = nn.LSTMCell(3 * size, size)
        self.actions = nn.Linear(size, 2)

    def forward(self, top, second, nearest, state):
        state = self.cell(torch.cat((top, second, nearest), dim=1), state)
        return self.actions(state[0]), state


class ShiftReduceEncoder(nn.Module):
    """Builds the vector of a sentence by shifting words and reducing pairs."""

    def __init__(self, words=30, size=12):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.tracker = Tracker(size)
        self.left = nn.Linear(size, 3 * size)
        self.right = nn.Linear(size, 3 * size, bias=False)

    def reduce(self, left, right):
        i, f, g = torch.chunk(self.left(left) + self.right(right), 3, dim=1)
        return torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * (left + right) / 2

    def choose(self, scores, stack, buffer):
        if len(stack) < 2:
            return SHIFT
        if not buffer:
            return REDUCE
        return scores.argmax(dim=1).item()

    def forward(self, words):
        embedded = self.embedding(words)
        buffer, stack = list(torch.split(embedded, 1, dim=0))[::-1], []
        empty, state = embedded.new_zeros(1, embedded.size(1)), None
        score, actions = embedded.new_zeros(()), []
        while buffer or len(stack) > 1:
            top = stack[-1] if stack else empty
            second = stack[-2] if len(stack) > 1 else empty
            nearest = buffer[-1] if buffer else empty
            scores, state = self.tracker(top, second, nearest, state)
            action = self.choose(scores, stack, buffer)
            score = score + scores.log_softmax(dim=1)[0, action]
            actions.append(action)
            if action == SHIFT:
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(self.reduce(left, right))
        return stack.pop().squeeze(0), score, actions


def main():
    """The same vectors and actions in both ways, in launches of one sentence."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)
    encoder = ShiftReduceEncoder().double()
    sentences = [torch.randint(30, (rng.randint(3, 12),)) for _ in range(16)]

    with ps.profile() as run:
        mapped = ps.map(encoder, sentences)
    launches = len(run.launches)
    plain = [encoder(sentence) for sentence in sentences]

    assert [actions for _, _, actions in mapped] == [actions for _, _, actions in plain]
    torch.testing.assert_close(mapped, plain, rtol=1e-9, atol=1e-11)
    gradients = [
        torch.autograd.grad(sum(v.sum() + s for v, s, _ in results), encoder.parameters())
        for results in (mapped, plain)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)

    with ps.profile() as longest:
        ps.map(encoder, [max(sentences, key=len)])
    print(f"{len(sentences)} sentences: {launches} launches")
    print(f"the longest alone: {len(longest.launches)} launches")


if __name__ == "__main__":
    main()
