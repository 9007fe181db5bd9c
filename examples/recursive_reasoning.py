"""A small model that reasons until it decides to stop, on puzzles made on the fly.

A puzzle is a table of pointers and a place to start; following the pointers ends at a place that
points to itself. One learned step, shared by all, is repeated; how often is learned too, by
adaptive computation time. Puzzles need one to four hops.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps

PLACES, HOPS, PONDER = 6, 4, 0.01


def puzzles(count, generator):
    """Tables, starts, ends, and how many hops lie between them."""
    order = torch.rand(count, PLACES, generator=generator).argsort(1)
    hops = torch.randint(1, HOPS + 1, (count,), generator=generator)
    tables = torch.arange(PLACES).repeat(count, 1)
    for hop in range(HOPS):
        goes_on = (hop < hops)[:, None]
        here, there = order[:, hop : hop + 1], order[:, hop + 1 : hop + 2]
        tables.scatter_(1, here, torch.where(goes_on, there, here))
    ends = order.gather(1, hops[:, None]).squeeze(1)
    return tables, order[:, 0], ends, hops


class Look(nn.Module):
    """One step of thought: what the table holds for the state leads to the next."""

    def __init__(self, size):
        super().__init__()
        self.query = nn.Linear(size, size)
        self.change = nn.Linear(size, size)

    def forward(self, table, state):
        keys, values = table
        found = torch.softmax(keys @ self.query(state) / 2, 0) @ values
        return found + torch.tanh(self.change(found))


class Reasoner(nn.Module):
    """Scores of the places where a puzzle may end, and what thinking has cost."""

    def __init__(self, size=48):
        super().__init__()
        self.places = nn.Embedding(PLACES, size)
        self.think = ps.nn.AdaptiveComputation(Look(size), size, limit=10)
        nn.init.constant_(self.think.halt.bias, -2)  # at first, think long
        self.answer = nn.Linear(size, PLACES)

    @ps.function
    def forward(self, table, start):
        table = self.places.weight, self.places(table)
        state, cost, steps = self.think(table, self.places(start))
        return self.answer(state), cost, steps


def train(model, steps, generator):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for step in range(steps):
        tables, starts, ends, _ = puzzles(64, generator)
        scores, costs, _ = model.forward.map(tables, starts, out="stack")
        loss = F.cross_entropy(scores, ends) + PONDER * costs.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="of training (default 200)")
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Reasoner()
    train(model, options.steps, generator)
    tables, starts, ends, hops = puzzles(400, generator)
    with torch.no_grad():
        scores, _, steps = model.forward.map(tables, starts, out="stack")
    right = scores.argmax(1) == ends
    print("hops  right  steps of thought")
    for number in range(1, HOPS + 1):
        chosen = hops == number
        share, mean = right[chosen].double().mean(), steps[chosen].double().mean()
        print(f"{number:4d} {share:6.0%}  {mean:.1f}")


if __name__ == "__main__":
    main()
