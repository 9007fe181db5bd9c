"""SICK, pairs of sentences with dependency trees and a score of relatedness, from its parent files.

A split is a folder with a line for each pair in every file: `a.toks` and `b.toks` (words),
`a.parents` and `b.parents` (the head of each word, counted from 1, 0 for the root), `sim.txt` (a
score from 1 to 5). What is wrong in a file is refused with file, line and reason. The binarised
constituency trees (`cparents`) and the relations are not read. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from penstock.data.tree import Tree
from penstock.errors import TreeError, report

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class SentencePair:
    """Two sentences and how much they have to do with each other."""

    #: Node i of a tree is word i of its sentence.
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
) -> list[SentencePair]:
    """All pairs of one split (train, dev or test), with words looked up in the vocabulary.

    `folder` holds the splits; without it, it is `sick` in the folder that the environment variable
    PENSTOCK_DATA names. A word that the vocabulary lacks becomes `unknown`, or is an error without
    it.
    """
    place = _folder_of(folder) / split
    sides = [_read_trees(place, side, vocabulary, unknown) for side in "ab"]
    scores = _read_scores(place / "sim.txt")
    _check_same_length(place, [*map(len, sides), len(scores)])
    return [SentencePair(*row) for row in zip(*sides, scores, strict=True)]


def read_vocabulary(
    splits: Iterable[str] = SPLITS, *, folder: str | Path | None = None
) -> dict[str, int]:
    """All words of the splits, numbered from 0 in alphabetical order."""
    place = _folder_of(folder)
    files = [place / split / f"{side}.toks" for split in splits for side in "ab"]
    words = {word for file in files for line in _read_lines(file) for word in line.split()}
    return {word: number for number, word in enumerate(sorted(words))}


def _folder_of(folder: str | Path | None) -> Path:
    if folder is not None:
        return Path(folder)
    data = os.environ.get("PENSTOCK_DATA")
    if data:
        return Path(data) / "sick"
    raise FileNotFoundError(
        report(
            "sick: no place to look for the data.",
            facts=[("folder", "not given"), ("PENSTOCK_DATA", "not set")],
            todo="Pass folder=, or set PENSTOCK_DATA to the folder that holds sick/train.",
        )
    )


def _read_trees(
    place: Path, side: str, vocabulary: Mapping[str, int], unknown: int | None
) -> list[Tree]:
    words, parents = place / f"{side}.toks", place / f"{side}.parents"
    sentences, heads = _read_lines(words), _read_lines(parents)
    if len(sentences) != len(heads):
        _refuse_lengths({words: len(sentences), parents: len(heads)})
    tokens = [_look_up(line, vocabulary, unknown, words, at) for at, line in enumerate(sentences)]
    return [_tree(line, tokens[at], parents, at) for at, line in enumerate(heads)]


def _look_up(
    line: str, vocabulary: Mapping[str, int], unknown: int | None, file: Path, at: int
) -> list[int]:
    tokens = []
    for word in line.split():
        token = vocabulary.get(word, unknown)
        if token is None:
            todo = "Add the word, or pass unknown= with the token of words that are not known."
            expected = f"one of {len(vocabulary)} words"
            _refuse("a word is not in the vocabulary", file, at, expected, repr(word), todo)
        tokens.append(token)
    return tokens


def _tree(line: str, tokens: list[int], file: Path, at: int) -> Tree:
    heads = line.split()
    if len(heads) != len(tokens):
        expected = f"{len(tokens)}, as the sentence has words"
        _refuse("a line has the wrong number of heads", file, at, expected, str(len(heads)))
    try:
        parents = [int(head) - 1 for head in heads]
    except ValueError:
        wrong = next(head for head in heads if not _is_integer(head))
        _refuse("a head is not a number", file, at, f"0 to {len(tokens)}", repr(wrong))
    try:
        return Tree.from_parents(parents, tokens)
    except TreeError as error:
        reason = str(error).partition("\n")[0].removeprefix("Tree: ")
        _refuse("heads are not one tree", file, at, "heads from 1, and one 0", reason, cause=error)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _read_scores(file: Path) -> list[float]:
    return [_score(line, file, at) for at, line in enumerate(_read_lines(file))]


def _score(line: str, file: Path, at: int) -> float:
    try:
        score = float(line)
    except ValueError:
        score = 0.0
    if not 1 <= score <= 5:
        _refuse("a score is not in its range", file, at, "a number from 1 to 5", repr(line))
    return score


def _read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _check_same_length(place: Path, counts: list[int]) -> None:
    if len(set(counts)) > 1:
        names = ("a.toks", "b.toks", "sim.txt")
        _refuse_lengths({place / name: count for name, count in zip(names, counts, strict=True)})


def _refuse_lengths(counts: Mapping[Path, int]) -> NoReturn:
    facts = [(str(file), f"{count} lines") for file, count in counts.items()]
    todo = "Each file has one line for each pair; fetch the files again."
    raise TreeError(report("sick: files of one split differ in length.", facts=facts, todo=todo))


def _refuse(
    what: str,
    file: Path,
    at: int,
    expected: str,
    found: str,
    todo: str = "Mend the line, or leave the pair out of all files of its split.",
    *,
    cause: TreeError | None = None,
) -> NoReturn:
    facts = [("expected", expected), ("found", found)]
    text = report(f"sick: {what}.", where=f"{file}:{at + 1}", facts=facts, todo=todo)
    raise TreeError(text) from cause
