"""Bracketed text, `( ( a b ) c )`, to nested tuples of tokens.

Every opening bracket is closed, holds something, and nothing follows the tree; errors show the
column. Labels of inner nodes are not part of this form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from penstock.errors import TreeError, report

_PIECE = re.compile(r"[()]|[^()\s]+")


def parse_brackets(text: str, vocabulary: Mapping[str, int], unknown: int | None = None) -> Any:
    """Nested lists of tokens: words looked up, brackets as lists."""
    open_lists: list[list[Any]] = [[]]
    for match in _PIECE.finditer(text):
        piece, column = match.group(), match.start() + 1
        if len(open_lists) == 1 and open_lists[0]:
            _refuse(text, column, "the end of the text after one tree", piece)
        if piece == "(":
            open_lists.append([])
        elif piece == ")":
            _close(open_lists, text, column)
        else:
            open_lists[-1].append(_look_up(piece, vocabulary, unknown, column))
    if len(open_lists) > 1 or not open_lists[0]:
        _refuse(text, len(text) + 1, "')'" if len(open_lists) > 1 else "a tree", "the end")
    return open_lists[0][0]


def _close(open_lists: list[list[Any]], text: str, column: int) -> None:
    if len(open_lists) == 1:
        _refuse(text, column, "'(' or a word", ")")
    if not open_lists[-1]:
        _refuse(text, column, "a child between the brackets", ")")
    finished = open_lists.pop()
    open_lists[-1].append(finished)


def _look_up(word: str, vocabulary: Mapping[str, int], unknown: int | None, column: int) -> int:
    token = vocabulary.get(word, unknown)
    if token is not None:
        return token
    raise TreeError(
        report(
            "Tree.from_brackets: a word is not in the vocabulary.",
            where=f"column {column}",
            facts=[("expected", f"one of {len(vocabulary)} words"), ("found", repr(word))],
            todo="Add the word, or pass unknown= with the token of words that are not known.",
        )
    )


def _refuse(text: str, column: int, expected: str, found: str) -> NoReturn:
    raise TreeError(
        report(
            "Tree.from_brackets: the text is not one bracketed tree.",
            where=f"column {column}, after {text[max(0, column - 21) : column - 1]!r}",
            facts=[("expected", expected), ("found", found)],
            todo="Write a tree as ( child child ... ) and a leaf as a word.",
        )
    )
