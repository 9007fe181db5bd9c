"""Labelled brackets as in the Penn Treebank: `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`.

A bracket holds a label and then either one word, a leaf, or other brackets, its children. A label
may be missing, and is then "", as around whole trees: `( (S ...) )`. A tree may take any number of
lines, and a file any number of trees. Trees of sentiment, `(3 (2 good) (4 film))`, have this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from penstock.data.lines import Line, number_words, read_lines
from penstock.data.nodes import NO_TOKEN
from penstock.data.pytree import register_fields_as_leaves
from penstock.data.tree import Tree

#: A word may hold any space but these two: treebanks have words with thin and with fixed spaces.
_PIECE = re.compile(r"[()]|[^() \t]+")


@register_fields_as_leaves
@dataclass(frozen=True, eq=False)
class LabelledTree:
    """A tree whose leaves have words, and whose nodes, leaves among them, have labels."""

    #: Tokens of the words at its leaves, NO_TOKEN elsewhere. Nodes are numbered in preorder.
    tree: Tree
    #: int64[n]: the label of each node.
    label: Tensor


def read_trees(
    file: str | Path,
    vocabulary: Mapping[str, int],
    labels: Mapping[str, int],
    *,
    unknown: int | None = None,
) -> list[LabelledTree]:
    """All trees of a file, with words and labels looked up.

    A word that the vocabulary lacks becomes `unknown`, or is an error without it; so is a label
    that `labels` lacks.
    """
    return [_labelled_tree(parse, vocabulary, labels, unknown) for parse in _parses(file)]


def read_vocabulary(files: Iterable[str | Path]) -> dict[str, int]:
    """All words at leaves, numbered from 0 in alphabetical order."""
    parses = (parse for file in files for parse in _parses(file))
    return number_words(word for parse in parses for word in parse.words if word is not None)


def read_labels(files: Iterable[str | Path]) -> dict[str, int]:
    """All labels of brackets, numbered from 0 in alphabetical order."""
    return number_words(
        label for file in files for parse in _parses(file) for label in parse.labels
    )


@dataclass
class _Parse:
    """The brackets of one tree, in the order in which they open."""

    parents: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    words: list[str | None] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    #: Those that are not closed yet.
    open: list[int] = field(default_factory=list)
    #: How many children each has.
    arity: list[int] = field(default_factory=list)


def _parses(file: str | Path) -> Iterator[_Parse]:
    parse, is_label = _Parse(), False
    for line in read_lines(file, "penn"):
        for piece in _PIECE.findall(line.text):
            if piece == "(":
                _open(parse, line)
            elif piece == ")":
                _close(parse, line)
            elif is_label:
                parse.labels[-1] = piece
            else:
                _add_word(parse, piece, line)
            is_label = piece == "("
            if not parse.open:
                yield parse
                parse = _Parse()
    if parse.open:
        line = parse.lines[parse.open[-1]]
        line.refuse("a bracket is not closed", "')'", "the end of the file")


def _open(parse: _Parse, line: Line) -> None:
    parent = parse.open[-1] if parse.open else -1
    if parent >= 0:
        if parse.words[parent] is not None:
            line.refuse("a bracket holds a word and a bracket", "')'", "'('")
        parse.arity[parent] += 1
    parse.open.append(len(parse.parents))
    parse.parents.append(parent)
    parse.labels.append("")
    parse.words.append(None)
    parse.lines.append(line)
    parse.arity.append(0)


def _close(parse: _Parse, line: Line) -> None:
    if not parse.open:
        line.refuse("a bracket was not opened", "'('", "')'")
    node = parse.open.pop()
    if parse.words[node] is None and not parse.arity[node]:
        line.refuse("a bracket is empty", "a word or a bracket", "')'")


def _add_word(parse: _Parse, word: str, line: Line) -> None:
    if not parse.open:
        line.refuse("a word stands outside of brackets", "'('", repr(word))
    node = parse.open[-1]
    if parse.words[node] is not None or parse.arity[node]:
        line.refuse("a word is not alone in its bracket", "')'", repr(word))
    parse.words[node] = word


def _labelled_tree(
    parse: _Parse, vocabulary: Mapping[str, int], labels: Mapping[str, int], unknown: int | None
) -> LabelledTree:
    tokens = [
        NO_TOKEN if word is None else line.look_up(word, vocabulary, unknown)
        for word, line in zip(parse.words, parse.lines, strict=True)
    ]
    numbers = [_label(label, labels, line) for label, line in zip(parse.labels, parse.lines)]
    return LabelledTree(Tree.from_parents(parse.parents, tokens), torch.tensor(numbers))


def _label(label: str, labels: Mapping[str, int], line: Line) -> int:
    number = labels.get(label)
    if number is None:
        todo = "Add the label, or leave the tree out."
        expected = f"one of {len(labels)} labels"
        line.refuse("a label is not known", expected, repr(label), todo)
    return number
