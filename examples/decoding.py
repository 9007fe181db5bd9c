"""Greedy and beam decoding of a small model that spells sequences backwards.

The decoder's step is written for one hypothesis. Each example's search ends when it is done, and
takes its own number of steps. `--steps` trains longer.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import penstock as ps

END, BEGIN, SYMBOLS = 0, 1, 7


class Step(nn.Module):
    """From the state of a hypothesis and its last symbol to the next."""

    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, size)
        self.cell = nn.GRUCell(size, size)
        self.output = nn.Linear(size, SYMBOLS)

    def forward(self, state, token):
        state = self.cell(self.embedding(token), state)
        return state, torch.log_softmax(self.output(state), -1)


class Reverser(nn.Module):
    """Reads a sequence, and is asked for the same from its end."""

    def __init__(self, size):
        super().__init__()
        self.step = Step(size)
        self.read = ps.nn.GRU(size, size)

    @ps.function
    def encode(self, source):
        _, last = self.read(self.step.embedding(source))
        return last[0]

    @ps.function
    def loss(self, source):
        """The mean loss of the symbols of the answer, each after the right ones before it."""
        state, token, total = self.encode(source), torch.tensor(BEGIN), 0.0
        for wanted in source.flip(0):
            state, scores = self.step(state, token)
            total, token = total - scores[wanted], wanted
        _, scores = self.step(state, token)
        return (total - scores[END]) / (source.shape[0] + 1)


def sequences(count, generator):
    lengths = torch.randint(1, 5, (count,), generator=generator).tolist()
    return [torch.randint(2, SYMBOLS, (length,), generator=generator) for length in lengths]


def train(model, steps, generator):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model.loss.map(sequences(32, generator), out="stack").mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def decode(model, sources, width):
    """What the model says for each sequence, and with which score."""
    search = ps.nn.BeamSearch(model.step, width=width, begin=BEGIN, end=END, limit=8)
    with torch.no_grad():
        return ps.map(search, model.encode.map(sources, out="stack"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of training (default 60)")
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Reverser(32)
    print(f"loss {train(model, options.steps, generator):.3f}")
    sources = sequences(100, generator)
    for width in (1, 4):
        found = decode(model, sources, width)
        right = sum(
            tokens[:-1].tolist() == source.flip(0).tolist()
            for source, (tokens, _) in zip(sources, found, strict=True)
        )
        score = sum(score.item() for _, score in found) / len(found)
        print(f"width {width}: {right} of {len(sources)} right, mean log-probability {score:.2f}")


if __name__ == "__main__":
    main()
