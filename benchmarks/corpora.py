"""Trees to measure on: read where PENSTOCK_DATA says they are, made up in their likeness elsewhere.

A corpus says which of the two it is, and scripts print it. The same arguments always give the same
trees.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.data import Tree, random_binary_trees
from penstock.data.listops import VOCABULARY, read_expressions
from penstock.data.sick import SentencePair, read_pairs, read_vocabulary

#: How often 1, 2, ... children are drawn for an inner node. Where few words are left there are
#: fewer, which brings the shares of made-up trees near those of SICK: 56%, 19%, 14%, 8%, 3%.
DRAWN_ARITY = (0.40, 0.21, 0.21, 0.13, 0.04, 0.01)


@dataclass(frozen=True)
class PairCorpus:
    """Pairs of sentences, and where they are from."""

    pairs: list[SentencePair]
    #: How many different tokens there are.
    vocabulary: int
    source: str


@dataclass(frozen=True)
class TreeCorpus:
    """Binary trees, and where they are from."""

    trees: list[Tree]
    vocabulary: int
    source: str


def sick(count: int) -> PairCorpus:
    """The first pairs of SICK's training split, or made-up ones."""
    if _folder("sick") is None:
        return PairCorpus(_made_up_pairs(count, seed=count), 2400, "made-up trees like SICK's")
    vocabulary = read_vocabulary(["train"])
    pairs = read_pairs("train", vocabulary)[:count]
    return PairCorpus(pairs, len(vocabulary), "SICK, training split")


def listops(count: int) -> TreeCorpus:
    """The first expressions of ListOps' standard test set as binary trees, or made-up ones."""
    folder, words = _folder("listops"), len(VOCABULARY)
    if folder is None:
        trees = random_binary_trees(
            count, leaves=(1, 400), mean=43, spread=40, vocabulary=words, seed=count
        )
        return TreeCorpus(trees, words, "made-up trees like ListOps'")
    file = folder / "test_d20s.tsv.gz"
    trees = [found.tree for found in read_expressions(file, form="binary", limit=count)]
    return TreeCorpus(trees, words, "ListOps, test set d20s")


def random_trees(count: int) -> TreeCorpus:
    """Random binary trees of 10 to 60 leaves."""
    return TreeCorpus(random_binary_trees(count, seed=count), 2000, "random binary trees")


#: The corpora of binary trees.
BINARY: dict[str, Callable[[int], TreeCorpus]] = {"listops": listops, "random": random_trees}


def _folder(name: str) -> Path | None:
    data = os.environ.get("PENSTOCK_DATA")
    folder = Path(data) / name if data else None
    return folder if folder is not None and folder.is_dir() else None


def _made_up_pairs(count: int, seed: int) -> list[SentencePair]:
    rng = np.random.default_rng(seed)
    return [
        SentencePair(
            _dependency_tree(rng), _dependency_tree(rng), round(float(rng.uniform(1, 5)), 1)
        )
        for _ in range(count)
    ]


def _dependency_tree(rng: np.random.Generator) -> Tree:
    """A tree of 3 to 36 words, about 9.7 in the mean, whose inner nodes are shaped like SICK's."""
    size = int(np.clip(rng.lognormal(2.25, 0.40), 3, 36))
    parents, spans = [-1], [(0, size)]
    for position, span in spans:
        if span > 1:
            for part in _parts(span - 1, rng):
                spans.append((len(parents), part))
                parents.append(position)
    return Tree.from_parents(parents, rng.integers(0, 2400, size))


def _parts(words: int, rng: np.random.Generator) -> list[int]:
    """How many words go to each child, one at least."""
    arity = min(words, 1 + int(rng.choice(len(DRAWN_ARITY), p=DRAWN_ARITY)))
    extra = rng.multinomial(words - arity, rng.dirichlet(np.full(arity, 0.7)))
    return [1 + int(count) for count in extra]
