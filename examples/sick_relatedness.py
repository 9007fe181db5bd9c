"""How much two sentences have to do with each other: a child-sum Tree-LSTM on pairs of parses.

Without options, a few steps on made-up pairs. `--data` trains on SICK, found where PENSTOCK_DATA
says, and reports Pearson's r on its test split for the epoch that was best on dev. The set-up is
that of Tai, Socher and Manning (2015), who report 0.868 with GloVe vectors of 300 numbers, fixed:
`--vectors FILE` reads such files (a word and its numbers on each line). Reached here in ten epochs:
0.804 with random vectors that are trained, and 0.856 with GloVe vectors of 100 numbers (6B).
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps
from penstock.data import random_trees, sick

SCORES = torch.arange(1.0, 6.0)


class Relatedness(nn.Module):
    """Log-probabilities of the scores 1 to 5 for one pair of trees."""

    def __init__(self, embedding, hidden, similarity=50):
        super().__init__()
        self.encoder = ps.nn.ChildSumTreeLSTM(embedding, hidden)
        self.compare = nn.Linear(2 * hidden, similarity)
        self.score = nn.Linear(similarity, len(SCORES))

    @ps.function
    def forward(self, pair):
        left, right = self.encoder(pair.left), self.encoder(pair.right)
        features = torch.cat([left * right, (left - right).abs()])
        return torch.log_softmax(self.score(torch.sigmoid(self.compare(features))), -1)


def made_up_pairs(count, seed):
    """Pairs of random trees; the more words they share, the higher their score."""
    trees = random_trees(2 * count, max_arity=4, nodes=(3, 8), vocabulary=12, seed=seed)
    pairs = []
    for left, right in zip(trees[:count], trees[count:], strict=True):
        words = [set(tree.token.tolist()) for tree in (left, right)]
        share = len(words[0] & words[1]) / len(words[0] | words[1])
        pairs.append(sick.SentencePair(left, right, 1 + 4 * share))
    return pairs


def targets_of(pairs):
    """A score as probabilities of the two whole scores next to it."""
    scores = torch.tensor([[pair.similarity] for pair in pairs])
    return (1 - (scores - SCORES).abs()).clamp(min=0)


def pearson(model, pairs, batch=256):
    """The correlation of predicted and given scores."""
    with torch.no_grad():
        parts = [pairs[at : at + batch] for at in range(0, len(pairs), batch)]
        outputs = [model.forward.map(part, out="stack") for part in parts]
    given = torch.tensor([pair.similarity for pair in pairs])
    return torch.corrcoef(torch.stack([torch.cat(outputs).exp() @ SCORES, given]))[0, 1].item()


def train(model, pairs, epochs, batch=25, report=lambda epoch, loss: None):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adagrad(trained, lr=0.05, weight_decay=1e-4)
    for epoch in range(epochs):
        order, losses = torch.randperm(len(pairs)).tolist(), []
        for at in range(0, len(order), batch):
            chosen = [pairs[number] for number in order[at : at + batch]]
            outputs = model.forward.map(chosen, out="stack")
            loss = F.kl_div(outputs, targets_of(chosen), reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        report(epoch, sum(losses) / len(losses))


def read_vectors(file, vocabulary):
    """An embedding of the words that the file has; others are random. It is not trained.

    A line is a word and its numbers, as in the files of GloVe. A word that is not there as it is
    written is looked up in lower case.
    """
    wanted = {*vocabulary, *(word.lower() for word in vocabulary)}
    with open(file, encoding="utf-8") as lines:
        parts = (line.rstrip().split(" ") for line in lines)
        found = {word: [float(n) for n in numbers] for word, *numbers in parts if word in wanted}
    if len({len(numbers) for numbers in found.values()}) != 1:
        raise ValueError(f"{file}: expected the same number of numbers after each word of SICK")
    embedding = nn.Embedding(len(vocabulary), len(next(iter(found.values())))).requires_grad_(False)
    nn.init.uniform_(embedding.weight, -0.05, 0.05)
    for word, number in vocabulary.items():
        if word in found or word.lower() in found:
            numbers = found.get(word) or found[word.lower()]
            embedding.weight[number] = torch.tensor(numbers)
    return embedding


def run_on_sick(options):
    """Train, and test the model of the epoch that was best on dev."""
    words = sick.read_vocabulary()
    pairs, dev, test = (sick.read_pairs(split, words) for split in sick.SPLITS)
    vectors = options.vectors and read_vectors(options.vectors, words)
    model = Relatedness(vectors or nn.Embedding(len(words), 300), hidden=150)
    best = {"r": -1.0, "weights": None}

    def report(epoch, loss):
        r = pearson(model, dev)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, r = {r:.3f} on dev", flush=True)
        if r > best["r"]:
            best.update(r=r, weights=copy.deepcopy(model.state_dict()))

    train(model, pairs, options.epochs, report=report)
    model.load_state_dict(best["weights"])
    print(f"SICK: r = {pearson(model, test):.3f} on {len(test)} test pairs (literature: 0.868)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="store_true", help="train on SICK")
    parser.add_argument("--vectors", help="a file of word vectors, such as glove.840B.300d.txt")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.data:
        run_on_sick(options)
        return
    model, pairs = Relatedness(nn.Embedding(12, 8), hidden=8), made_up_pairs(100, seed=0)
    train(model, pairs, options.epochs)
    print(f"made-up pairs: r = {pearson(model, pairs):.3f} on the training pairs")


if __name__ == "__main__":
    main()
