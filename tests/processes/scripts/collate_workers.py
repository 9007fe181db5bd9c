"""Trains on batches that DataLoader workers have collated, and compares with plain maps.

Run with the start method of the workers: "spawn", "fork", or "none" for no workers.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import DataLoader

import penstock as ps
from penstock.data import random_binary_trees
from penstock.plan import planners


class Encoder(nn.Module):
    """A small recursive network."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 3)
        self.join = nn.Linear(6, 3)

    @ps.function
    def encode(self, tree, i):
        if tree.is_leaf(i):
            return self.embedding(tree.token[i])
        left, right = self.encode(tree, tree.left(i)), self.encode(tree, tree.right(i))
        return torch.tanh(self.join(torch.cat([left, right])))

    @ps.function
    def forward(self, tree, scale):
        return self.encode(tree, tree.root).sum() * scale


def examples(count):
    trees = random_binary_trees(count, vocabulary=50, seed=3)
    return [(tree, 0.5 * number) for number, tree in enumerate(trees)]


def refuse(*args, **kwargs):
    raise AssertionError("the training process plans")


def gradients(model, run):
    model.zero_grad()
    outputs = run()
    (outputs * torch.arange(1.0, 1 + len(outputs))).sum().backward()
    return [outputs.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def main(method: str) -> None:
    torch.manual_seed(0)
    model, data = Encoder(), examples(12)
    context = None if method == "none" else method
    loader = DataLoader(
        data,
        batch_size=4,
        collate_fn=model.forward.collate,
        num_workers=0 if context is None else 2,
        multiprocessing_context=context,
    )
    if context is None:
        batches = list(loader)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert all(batch.note == "" and len(batch.plans) == 1 for batch in batches)
    model.forward(*data[0])  # compiled, and the plan of another batch
    for number, batch in enumerate(batches):
        with patch.object(planners.Machine, "run", refuse):
            found = gradients(model, lambda batch=batch: model.forward.map(batch, out="stack"))
        columns = list(zip(*data[4 * number : 4 * number + 4], strict=True))
        again = Encoder()
        again.load_state_dict(model.state_dict())
        expected = gradients(again, lambda f=again.forward, c=columns: f.map(*c, out="stack"))
        for left, right in zip(found, expected, strict=True):
            torch.testing.assert_close(left, right)
    print("agreed")


if __name__ == "__main__":
    main(sys.argv[1])
