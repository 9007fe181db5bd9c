"""Sentence-pair relatedness with a child-sum Tree-LSTM, one pair at a time, mapped over a batch.

The model is ordinary per-sample code: it walks Python objects and leaves the state of every node on
the node. Trees and scores are made up. Nothing in the model knows of Penstock.
"""

from __future__ import annotations

import argparse
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps

WORDS, CLASSES = 60, 5


class Tree:
    """A node of a dependency tree: its word, its dependents, and what the model found there."""

    def __init__(self, word, children):
        self.word = word
        self.children = children
        self.state = None


class ChildSumTreeLSTM(nn.Module):
    """Sums the hidden states of the children; forgets each child's memory by a gate of its own."""

    def __init__(self, embedded, hidden):
        super().__init__()
        self.hidden = hidden
        self.gates_x = nn.Linear(embedded, 3 * hidden)
        self.gates_h = nn.Linear(hidden, 3 * hidden)
        self.forget_x = nn.Linear(embedded, hidden)
        self.forget_h = nn.Linear(hidden, hidden)

    def node_forward(self, x, child_c, child_h):
        h_sum = torch.sum(child_h, dim=0, keepdim=True)
        i, o, u = torch.chunk(self.gates_x(x) + self.gates_h(h_sum), 3, dim=1)
        f = torch.sigmoid(self.forget_h(child_h) + self.forget_x(x).repeat(len(child_h), 1))
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sum(f * child_c, dim=0, keepdim=True)
        return c, torch.sigmoid(o) * torch.tanh(c)

    def forward(self, tree, words):
        for child in tree.children:
            self(child, words)
        x = words[tree.word].unsqueeze(0)
        if tree.children:
            child_c, child_h = zip(*(child.state for child in tree.children), strict=True)
            child_c, child_h = torch.cat(child_c, dim=0), torch.cat(child_h, dim=0)
        else:
            child_c = x.detach().new(1, self.hidden).fill_(0.0).requires_grad_()
            child_h = x.detach().new(1, self.hidden).fill_(0.0).requires_grad_()
        tree.state = self.node_forward(x, child_c, child_h)
        return tree.state


class Relatedness(nn.Module):
    """A distribution over scores of 1 to 5 for two sentences."""

    def __init__(self, embedded=16, hidden=24, similar=12):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, embedded)
        self.encoder = ChildSumTreeLSTM(embedded, hidden)
        self.compare = nn.Linear(2 * hidden, similar)
        self.score = nn.Linear(similar, CLASSES)

    def encode(self, tree, words):
        return self.encoder(tree, self.embedding(words))[1]

    def forward(self, pair):
        (left_tree, left_words), (right_tree, right_words) = pair
        left, right = self.encode(left_tree, left_words), self.encode(right_tree, right_words)
        features = torch.cat((torch.mul(left, right), torch.abs(left - right)), 1)
        return F.log_softmax(self.score(torch.sigmoid(self.compare(features))), dim=1)


def made_up_sentence(rng):
    """A random dependency tree, and the words it points to."""
    count = rng.randint(4, 10)
    nodes = [Tree(0, [])]
    for position in range(1, count):
        node = Tree(position, [])
        rng.choice(nodes).children.append(node)
        nodes.append(node)
    return nodes[0], torch.tensor([rng.randrange(WORDS) for _ in range(count)])


def made_up_pairs(count, seed):
    """Pairs of sentences, and for each a distribution over the five scores."""
    rng = random.Random(seed)
    pairs = [(made_up_sentence(rng), made_up_sentence(rng)) for _ in range(count)]
    targets = torch.zeros(count, CLASSES)
    for row in targets:
        score = rng.uniform(1, CLASSES)
        below = min(int(score), CLASSES - 1)
        row[below - 1], row[below] = below + 1 - score, score - below
    return pairs, targets


def step(run, model, pairs, targets):
    """The loss of a batch, and its gradients."""
    model.zero_grad()
    started = time.perf_counter()
    predictions = torch.cat(run(model, pairs))
    loss = F.kl_div(predictions, targets, reduction="batchmean")
    loss.backward()
    seconds = time.perf_counter() - started
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()], seconds


def one_by_one(model, pairs):
    """What `ps.map(model, pairs)` means."""
    return [model(pair) for pair in pairs]


def main():
    """One training step in both ways."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.manual_seed(0)
    model = Relatedness().double()
    pairs, targets = made_up_pairs(24, seed=1)
    targets = targets.double()
    step(ps.map, model, pairs, targets)
    loss, gradients, mapped_seconds = step(ps.map, model, pairs, targets)
    plain_loss, plain_gradients, plain_seconds = step(one_by_one, model, pairs, targets)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-8, atol=1e-10)
    print(f"loss {loss:.6f}, the same as one by one")
    print(f"one by one {plain_seconds * 1e3:.0f} ms, mapped {mapped_seconds * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
