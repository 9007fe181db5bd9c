"""CoNLL-U: sentences of dependency treebanks, one word a line, an empty line after each sentence.

Of the ten columns, the number of a word, its form and its head are read. Rows for several words at
once (`3-4`) and for empty nodes (`5.1`) are not words of the tree, and are passed over. Node i of a
tree is word i of its sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from penstock.data.lines import Line, number_words, read_lines
from penstock.data.tree import Tree

_COLUMNS = 10


def read_trees(
    file: str | Path, vocabulary: Mapping[str, int], *, unknown: int | None = None
) -> list[Tree]:
    """The trees of all sentences, with words looked up in the vocabulary.

    A word that the vocabulary lacks becomes `unknown`, or is an error without it.
    """
    return [_tree(rows, vocabulary, unknown) for rows in _sentences(file)]


def read_vocabulary(files: Iterable[str | Path]) -> dict[str, int]:
    """All words of the files, numbered from 0 in alphabetical order."""
    return number_words(row[1][1] for file in files for rows in _sentences(file) for row in rows)


#: A line, and its columns.
Row = tuple[Line, list[str]]


def _sentences(file: str | Path) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for line in read_lines(file, "conllu"):
        if not line.text:
            if rows:
                yield rows
            rows = []
        elif not line.text.startswith("#"):
            columns = _columns(line)
            if columns[0].isdecimal():
                _check_number(line, columns[0], len(rows) + 1)
                rows.append((line, columns))
    if rows:
        yield rows


def _columns(line: Line) -> list[str]:
    columns = line.text.split("\t")
    if len(columns) != _COLUMNS:
        expected = f"{_COLUMNS}, separated by tabs"
        line.refuse("a line has the wrong number of columns", expected, str(len(columns)))
    number = columns[0]
    if not number.replace("-", ".", 1).replace(".", "", 1).isdecimal():
        line.refuse("a word has no number", "such as 3, 3-4 or 3.1", repr(number))
    return columns


def _check_number(line: Line, number: str, expected: int) -> None:
    if int(number) != expected:
        line.refuse("words are not numbered one after the other", str(expected), number)


def _tree(rows: list[Row], vocabulary: Mapping[str, int], unknown: int | None) -> Tree:
    tokens = [line.look_up(columns[1], vocabulary, unknown) for line, columns in rows]
    heads = [line.number_in(columns[6], f"0 to {len(rows)}", "a head") for line, columns in rows]
    return rows[0][0].tree_of_heads(heads, tokens)
