"""A training loop with a DataLoader whose batches are lists of samples of different forms.

`collate_fn=list` keeps the samples apart; `ps.map(model, batch)` is the only line that is not what
a loop over samples would have.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import penstock as ps

OPERATIONS = {"max": max, "min": min, "last": lambda values: values[-1]}


class Expressions(Dataset):
    """Nested lists such as ["max", 3, ["min", 7, 2]], with their values as labels."""

    def __init__(self, count, seed=0):
        rng = random.Random(seed)
        self.samples = [self._expression(rng, 3) for _ in range(count)]

    def _expression(self, rng, depth):
        if depth == 0 or rng.random() < 0.3:
            digit = rng.randrange(10)
            return digit, digit
        name = rng.choice(list(OPERATIONS))
        parts = [self._expression(rng, depth - 1) for _ in range(rng.randint(2, 4))]
        value = OPERATIONS[name]([value for _, value in parts])
        return [name, *(expression for expression, _ in parts)], value

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Evaluator(nn.Module):
    """Reads an expression from the inside out, with a recurrent cell for each operation."""

    def __init__(self, size=16):
        super().__init__()
        self.digits = nn.Embedding(10, size)
        self.cells = nn.ModuleDict({name: nn.GRUCell(size, size) for name in OPERATIONS})
        self.drop = nn.Dropout(0.1)
        self.answer = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 10))

    def encode(self, expression):
        if isinstance(expression, int):
            return self.digits(torch.tensor([expression]))
        name, *parts = expression
        state = torch.zeros(1, self.digits.embedding_dim)
        for part in parts:
            state = self.cells[name](self.encode(part), state)
        return self.drop(state)

    def forward(self, sample):
        expression, value = sample
        scores = self.answer(self.encode(expression))
        return F.cross_entropy(scores, torch.tensor([value]))


def train(run, epochs=2):
    """Mean losses of each epoch."""
    torch.manual_seed(0)
    model = Evaluator()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(
        Expressions(64), batch_size=16, shuffle=True, collate_fn=list, generator=order
    )
    means = []
    for _ in range(epochs):
        losses = []
        for batch in loader:
            loss = torch.stack(run(model, batch)).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
    return means


def one_by_one(model, batch):
    """The plain loop, with the random numbers that a map draws."""
    with ps.set_eager(True):
        return ps.map(model, batch)


def main():
    """Train in both ways, to the same losses, dropout included."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    mapped, plain = train(ps.map), train(one_by_one)
    torch.testing.assert_close(torch.tensor(mapped), torch.tensor(plain), rtol=1e-3, atol=1e-4)
    print("mean losses", " ".join(f"{loss:.3f}" for loss in mapped))


if __name__ == "__main__":
    main()
