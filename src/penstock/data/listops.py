"""ListOps (Nangia and Bowman, 2018): expressions over digits, and their values.

A line is a value, a tab and an expression in brackets of two, `( ( ( [MAX 2 ) 7 ) ] )`. It is read
as a tree of operators, whose children are the arguments, or as the binary tree that the round
brackets show, whose leaves are the words. The same expressions can be made up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from penstock.data.lines import Line, read_lines
from penstock.data.nodes import Node
from penstock.data.tree import Tree
from penstock.errors import TreeError

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
    "[FIRST": lambda values: values[0],
    "[LAST": lambda values: values[-1],
}

#: Digits have the tokens 0 to 9.
VOCABULARY = {word: token for token, word in enumerate([*map(str, range(10)), *OPERATORS, "]"])}

FORMS = ("operators", "binary")


@dataclass(frozen=True)
class Expression:
    """An expression and its value, a digit."""

    tree: Tree
    value: int


def read_expressions(
    file: str | Path, *, form: str = "operators", limit: int | None = None
) -> list[Expression]:
    """The expressions of a file, or the first `limit` of them.

    `form` is "operators" for trees with an operator at each inner node and a digit at each leaf, or
    "binary" for binary trees with a word at each leaf.
    """
    if form not in FORMS:
        raise ValueError(f"listops: form is {form!r}. Pass one of {', '.join(FORMS)}.")
    read = _operators if form == "operators" else _binary
    lines = islice(read_lines(file, "listops"), limit)
    return [Expression(read(text, line), value) for value, text, line in map(_parts, lines)]


def made_up_expressions(
    count: int, *, depth: int = 4, arity: tuple[int, int] = (2, 5), seed: int
) -> list[Expression]:
    """Expressions as trees of operators, at most `depth` deep, with their values.

    >>> expressions = made_up_expressions(100, depth=2, seed=0)
    >>> all(0 <= expression.value <= 9 for expression in expressions)
    True
    """
    generator = random.Random(seed)
    made = (_made_up(generator, depth, arity) for _ in range(count))
    return [Expression(Tree.from_nodes(node), value) for node, value in made]


def _made_up(generator: random.Random, depth: int, arity: tuple[int, int]) -> tuple[Node, int]:
    if depth == 0 or generator.random() < 0.3:
        digit = generator.randrange(10)
        return Node(digit), digit
    word = generator.choice(["[MAX", "[MIN", "[MED", "[SM"])
    parts = [_made_up(generator, depth - 1, arity) for _ in range(generator.randint(*arity))]
    nodes, values = zip(*parts)
    return Node(VOCABULARY[word], nodes), OPERATORS[word](values)


def _parts(line: Line) -> tuple[int, str, Line]:
    value, tab, text = line.text.partition("\t")
    if not tab or value not in VOCABULARY or not value.isdecimal():
        line.refuse("a line does not start with a value", "a digit and a tab", repr(line.text[:10]))
    return int(value), text, line


def _binary(text: str, line: Line) -> Tree:
    try:
        return Tree.from_brackets(text, VOCABULARY)
    except TreeError as error:
        reason = " ".join(str(error).removeprefix("Tree.from_brackets: ").split())
        line.refuse("an expression is not a binary tree", "( part part )", reason, cause=error)


def _operators(text: str, line: Line) -> Tree:
    """The tree of `[OP argument ... ]`; round brackets say nothing that is not said by these."""
    open_lists: list[tuple[int, list[Any]]] = [(-1, [])]
    for word in text.split():
        if word in "()":
            continue
        if word not in VOCABULARY:
            line.refuse("a word is not in the vocabulary", "a digit or an operator", repr(word))
        if word in OPERATORS:
            open_lists.append((VOCABULARY[word], []))
        elif word == "]":
            _close(open_lists, line)
        else:
            open_lists[-1][1].append(Node(VOCABULARY[word]))
    if len(open_lists) > 1:
        line.refuse("an operator has no end", "']'", "the end of the line")
    found = open_lists[0][1]
    if len(found) != 1:
        line.refuse("a line has not one expression", "1", str(len(found)))
    return Tree.from_nodes(found[0])


def _close(open_lists: list[tuple[int, list[Any]]], line: Line) -> None:
    token, arguments = open_lists.pop()
    if not open_lists:
        line.refuse("an operator was not begun", "a digit or an operator", "']'")
    if not arguments:
        line.refuse("an operator has no argument", "a digit or an operator", "']'")
    open_lists[-1][1].append(Node(token, arguments))
