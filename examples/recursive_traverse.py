"""A recursive net for sentiment at every node of a parse, in the `traverse` style.

The method `traverse` returns the state of a node and collects a prediction and a loss on the way.
Trees are made up; the model is plain per-sample code.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps

WORDS, CLASSES = 40, 3


class Node:
    """A leaf with a word, or an inner node with two children; each has a label."""

    def __init__(self, label, word=None, left=None, right=None):
        self.label = label
        self.word = word
        self.left = left
        self.right = right

    @property
    def is_leaf(self):
        return self.word is not None


class RecursiveNet(nn.Module):
    """One matrix joins two phrases into one."""

    def __init__(self, size=16):
        super().__init__()
        self.embed = nn.Embedding(WORDS, size)
        self.join = nn.Linear(2 * size, size)
        self.classify = nn.Linear(size, CLASSES)

    def traverse(self, node, losses, hits):
        if node.is_leaf:
            state = F.relu(self.embed(torch.tensor([node.word])))
        else:
            left = self.traverse(node.left, losses, hits)
            right = self.traverse(node.right, losses, hits)
            state = F.relu(self.join(torch.cat((left, right), 1)))
        scores = self.classify(state)
        losses.append(F.cross_entropy(scores, torch.tensor([node.label])))
        hits.append(scores.argmax(dim=1) == node.label)
        return state

    def forward(self, tree):
        losses, hits = [], []
        self.traverse(tree, losses, hits)
        return sum(losses), torch.cat(hits).sum(), len(hits)


def made_up_tree(rng, depth):
    """A random binary parse."""
    if depth == 0 or rng.random() < 0.25:
        word = rng.randrange(WORDS)
        return Node(word % CLASSES, word=word)
    left, right = made_up_tree(rng, depth - 1), made_up_tree(rng, depth - 1)
    return Node(max(left.label, right.label), left=left, right=right)


def train(run, steps=6):
    """Losses of some training steps."""
    torch.manual_seed(0)
    rng = random.Random(0)
    model = RecursiveNet().double()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        trees = [made_up_tree(rng, 4) for _ in range(12)]
        results = run(model, trees)
        loss = sum(loss for loss, _, _ in results) / len(results)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct = sum(int(hits) for _, hits, _ in results) / sum(count for _, _, count in results)
        losses.append(loss.item())
    return losses, correct


def one_by_one(model, trees):
    """What `ps.map(model, trees)` means."""
    return [model(tree) for tree in trees]


def main():
    """Train in both ways, to the same losses."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    mapped, correct = train(ps.map)
    plain, plain_correct = train(one_by_one)
    torch.testing.assert_close(torch.tensor(mapped), torch.tensor(plain), rtol=1e-6, atol=1e-8)
    assert correct == plain_correct
    print("losses", " ".join(f"{loss:.3f}" for loss in mapped), f"correct {correct:.0%}")


if __name__ == "__main__":
    main()
