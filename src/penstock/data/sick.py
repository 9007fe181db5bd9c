"""SICK, pairs of sentences with trees and a score of relatedness, from its parent files.

A split is a folder with a line for each pair in every file: `a.toks` and `b.toks` (words),
`a.parents` and `b.parents` (the head of each word, counted from 1, 0 for the root), `a.cparents`
and `b.cparents` (binary constituents: parents of the words, then of inner nodes), `sim.txt` (a
score from 1 to 5). Relations are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from penstock.data.lines import Line, data_folder, number_words, read_lines
from penstock.data.nodes import NO_TOKEN
from penstock.data.tree import Tree
from penstock.errors import TreeError, report

SPLITS = ("train", "dev", "test")

#: The files of each kind of tree.
_FILES = {"dependency": "parents", "constituency": "cparents"}


@dataclass(frozen=True)
class SentencePair:
    """Two sentences and how much they have to do with each other."""

    #: Node i of a tree is word i of its sentence; inner constituents come after the words.
    left: Tree
    right: Tree
    #: From 1, unrelated, to 5.
    similarity: float


def read_pairs(
    split: str,
    vocabulary: Mapping[str, int],
    *,
    folder: str | Path | None = None,
    unknown: int | None = None,
    trees: str = "dependency",
) -> list[SentencePair]:
    """All pairs of one split (train, dev or test), with words looked up in the vocabulary.

    `folder` holds the splits; without it, it is `sick` in the folder that the environment variable
    PENSTOCK_DATA names. A word that the vocabulary lacks becomes `unknown`, or is an error without
    it. `trees` is "dependency", with a word at every node, or "constituency", binary with the words
    at the leaves.
    """
    if trees not in _FILES:
        raise ValueError(f"sick: trees is {trees!r}. Pass one of {', '.join(_FILES)}.")
    place = data_folder("sick", folder) / split
    sides = [_read_trees(place, side, trees, vocabulary, unknown) for side in "ab"]
    scores = [_score(line) for line in _lines(place / "sim.txt")]
    _check_same_length(place, [*map(len, sides), len(scores)])
    return [SentencePair(*row) for row in zip(*sides, scores, strict=True)]


def read_vocabulary(
    splits: Iterable[str] = SPLITS, *, folder: str | Path | None = None
) -> dict[str, int]:
    """All words of the splits, numbered from 0 in alphabetical order."""
    place = data_folder("sick", folder)
    files = [place / split / f"{side}.toks" for split in splits for side in "ab"]
    return number_words(
        word for file in files for line in _lines(file) for word in line.text.split()
    )


def _read_trees(
    place: Path, side: str, kind: str, vocabulary: Mapping[str, int], unknown: int | None
) -> list[Tree]:
    words, parents = place / f"{side}.toks", place / f"{side}.{_FILES[kind]}"
    sentences, heads = _lines(words), _lines(parents)
    if len(sentences) != len(heads):
        _refuse_lengths({words: len(sentences), parents: len(heads)})
    tokens = [
        [line.look_up(word, vocabulary, unknown) for word in line.text.split()]
        for line in sentences
    ]
    build = _dependencies if kind == "dependency" else _constituents
    return [build(line, row) for line, row in zip(heads, tokens, strict=True)]


def _dependencies(line: Line, tokens: list[int]) -> Tree:
    return line.tree_of_heads(_heads(line, len(tokens), "as the sentence has words"), tokens)


def _constituents(line: Line, tokens: list[int]) -> Tree:
    """A binary tree over the words; children stand in the order of their words."""
    count = 2 * len(tokens) - 1
    heads = _heads(line, count, f"for {len(tokens)} words and the nodes above them")
    tree = line.tree_of_heads(heads, tokens + [NO_TOKEN] * (count - len(tokens)))
    children, start = tree.children.tolist(), tree.start.tolist()
    lists = [children[begin:end] for begin, end in pairwise(start)]
    for node, below in enumerate(lists):
        if len(below) != (0 if node < len(tokens) else 2):
            found = f"{len(below)} below node {node + 1}"
            expected = "no child below a word and two below other nodes"
            line.refuse("constituents are not binary", expected, found)
    _sort_by_words(lists, int(tree.root))
    ordered = [child for below in lists for child in below]
    return Tree.from_arrays(tree.token, tree.start, ordered, tree.root)


def _sort_by_words(lists: list[list[int]], root: int) -> None:
    order = [root]
    for node in order:
        order.extend(lists[node])
    first = list(range(len(lists)))
    for node in reversed(order):
        if lists[node]:
            lists[node].sort(key=first.__getitem__)
            first[node] = first[lists[node][0]]


def _heads(line: Line, count: int, reason: str) -> list[int]:
    heads = line.text.split()
    if len(heads) != count:
        expected = f"{count}, {reason}"
        line.refuse("a line has the wrong number of heads", expected, str(len(heads)))
    return [line.number_in(head, f"0 to {count}", "a head") for head in heads]


def _score(line: Line) -> float:
    try:
        score = float(line.text)
    except ValueError:
        score = 0.0
    if not 1 <= score <= 5:
        line.refuse("a score is not in its range", "a number from 1 to 5", repr(line.text))
    return score


def _lines(file: Path) -> list[Line]:
    return read_lines(file, "sick")


def _check_same_length(place: Path, counts: list[int]) -> None:
    if len(set(counts)) > 1:
        names = ("a.toks", "b.toks", "sim.txt")
        _refuse_lengths({place / name: count for name, count in zip(names, counts, strict=True)})


def _refuse_lengths(counts: Mapping[Path, int]) -> NoReturn:
    facts = [(str(file), f"{count} lines") for file, count in counts.items()]
    todo = "Each file has one line for each pair; fetch the files again."
    raise TreeError(report("sick: files of one split differ in length.", facts=facts, todo=todo))
