"""The value of nested list operations, by a child-sum Tree-LSTM over the tree of operators.

Without options, a few steps on made-up expressions. `--data FILE` trains on nine tenths of a file
of ListOps and reports accuracy on the rest; batches are planned in a DataLoader's worker.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import penstock as ps
from penstock.data import listops


class Evaluator(nn.Module):
    """Scores of the ten digits for one expression."""

    def __init__(self, hidden):
        super().__init__()
        embedding = nn.Embedding(len(listops.VOCABULARY), hidden)
        self.encoder = ps.nn.ChildSumTreeLSTM(embedding, hidden)
        self.answer = nn.Linear(hidden, 10)

    @ps.function
    def forward(self, tree):
        return self.answer(self.encoder(tree))

    def collate(self, expressions):
        """A planned batch of trees, and the values they have."""
        trees = self.forward.collate([expression.tree for expression in expressions])
        return trees, torch.tensor([expression.value for expression in expressions])


def accuracy(model, loader):
    with torch.no_grad():
        hits = [
            model.forward.map(trees, out="stack").argmax(1) == values for trees, values in loader
        ]
    return torch.cat(hits).double().mean().item()


def train(model, loader, epochs, report=lambda epoch, loss: None):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        losses = []
        for trees, values in loader:
            loss = F.cross_entropy(model.forward.map(trees, out="stack"), values)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
        report(epoch, sum(losses) / len(losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a ListOps file, such as test_d20s.tsv.gz")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.data:
        expressions, hidden, workers = listops.read_expressions(options.data), 128, 1
    else:
        expressions = listops.made_up_expressions(160, depth=2, arity=(2, 3), seed=0)
        hidden, workers = 24, 0
    held_out = len(expressions) // 10
    model = Evaluator(hidden)

    def loader(part, *, shuffle=False):
        return DataLoader(
            part, batch_size=32, shuffle=shuffle, collate_fn=model.collate, num_workers=workers
        )

    test = loader(expressions[:held_out])

    def report(epoch, loss):
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy(model, test):.1%}")

    train(model, loader(expressions[held_out:], shuffle=True), options.epochs, report)


if __name__ == "__main__":
    main()
