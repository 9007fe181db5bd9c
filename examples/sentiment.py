"""A class for every phrase of a sentence: a Tree-LSTM over labelled binary brackets.

Without options, made-up phrases in which "not" turns what follows. `--data TRAIN TEST` reads files
of brackets such as `(3 (2 a) (4 (4 good) (2 film)))`, as the Stanford Sentiment Treebank has them.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch
from torch import nn

import penstock as ps
from penstock.data import penn

GOOD, BAD = ["good", "fine", "bright"], ["bad", "dull", "poor"]


class Sentiment(nn.Module):
    """The loss of all phrases of one sentence, and how many were right."""

    def __init__(self, words, classes, hidden):
        super().__init__()
        self.cells = ps.nn.BinaryTreeLSTM(nn.Embedding(words, hidden), hidden)
        self.classify = nn.Linear(hidden, classes)

    @ps.function
    def visit(self, example, i):
        """h and c of node i; the loss and the hits of all nodes from it down."""
        tree = example.tree
        if tree.is_leaf(i):
            h, c = self.cells.leaf(tree.token[i])
            return h, c, *self.judge(h, example.label[i])
        h_left, c_left, loss_left, hits_left = self.visit(example, tree.left(i))
        h_right, c_right, loss_right, hits_right = self.visit(example, tree.right(i))
        h, c = self.cells.cell(h_left, c_left, h_right, c_right)
        loss, hits = self.judge(h, example.label[i])
        return h, c, loss + loss_left + loss_right, hits + hits_left + hits_right

    def judge(self, h, label):
        scores = torch.log_softmax(self.classify(h), -1)
        return -scores[label], (scores.argmax() == label).long()

    @ps.function
    def forward(self, example):
        _, _, loss, hits = self.visit(example, example.tree.root)
        return loss, hits


def made_up_brackets(count, seed):
    """Lines of brackets: 2 is good, 0 is bad, 1 is neither."""
    generator = random.Random(seed)

    def phrase(depth):
        if depth == 0 or generator.random() < 0.3:
            label = generator.randrange(3)
            return f"({label} {generator.choice([BAD, ['film', 'the'], GOOD][label])})", label
        text, label = phrase(depth - 1)
        if generator.random() < 0.4:
            return f"({2 - label} (1 not) {text})", 2 - label
        other, other_label = phrase(depth - 1)
        joint = min(max(label + other_label - 1, 0), 2)
        return f"({joint} {text} {other})", joint

    return "\n".join(phrase(4)[0] for _ in range(count))


def train(model, examples, epochs, batch=25):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        random.Random(epoch).shuffle(examples)
        for at in range(0, len(examples), batch):
            losses, _ = model.forward.map(examples[at : at + batch], out="stack")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()


def accuracy(model, examples):
    """The share of phrases whose class was found."""
    with torch.no_grad():
        _, hits = model.forward.map(examples, out="stack")
    return hits.sum().item() / sum(len(example.tree) for example in examples)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs=2, metavar=("TRAIN", "TEST"), help="files of brackets")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if options.data:
            files = [Path(name) for name in options.data]
        else:
            files = [Path(folder, name) for name in ("train", "test")]
            for seed, file in enumerate(files):
                file.write_text(made_up_brackets(100, seed), encoding="utf-8")
        words, labels = penn.read_vocabulary(files), penn.read_labels(files)
        examples, test = (penn.read_trees(file, words, labels) for file in files)
    model = Sentiment(len(words), len(labels), hidden=128 if options.data else 12)
    train(model, examples, options.epochs)
    print(f"{len(test)} sentences: {accuracy(model, test):.1%} of their phrases right")


if __name__ == "__main__":
    main()
