"""Lines of data files, and refusals that name the file, the line and the reason.

Files are UTF-8 text, plain or, where their name ends in .gz, compressed. Nothing is downloaded:
data lies where the user says, or below the folder that PENSTOCK_DATA names.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from penstock.data.tree import Tree
from penstock.errors import TreeError, report

_UNKNOWN = "Add the word, or pass unknown= with the token of words that are not known."


@dataclass(frozen=True)
class Line:
    """One line of a file, as a reader saw it."""

    #: What reads it, for messages.
    reader: str
    file: Path
    #: From 1.
    number: int
    text: str

    def refuse(
        self,
        what: str,
        expected: str,
        found: str,
        todo: str = "Mend the line, or leave out what it belongs to.",
        cause: Exception | None = None,
    ) -> NoReturn:
        """Raise the error that says what is wrong here."""
        facts = [("expected", expected), ("found", found)]
        where = f"{self.file}:{self.number}"
        raise TreeError(
            report(f"{self.reader}: {what}.", where=where, facts=facts, todo=todo)
        ) from cause

    def look_up(self, word: str, vocabulary: Mapping[str, int], unknown: int | None) -> int:
        """The token of a word."""
        token = vocabulary.get(word, unknown)
        if token is None:
            expected = f"one of {len(vocabulary)} words"
            self.refuse("a word is not in the vocabulary", expected, repr(word), _UNKNOWN)
        return token

    def number_in(self, text: str, expected: str, what: str) -> int:
        """A whole number that stands in this line."""
        if not text.removeprefix("-").isdecimal():
            self.refuse(f"{what} is not a number", expected, repr(text))
        return int(text)

    def tree_of_heads(self, heads: list[int], tokens: list[int]) -> Tree:
        """The tree in which node i hangs from node `heads[i]`, counted from 1; the root from 0."""
        try:
            return Tree.from_parents([head - 1 for head in heads], tokens)
        except TreeError as error:
            reason = str(error).partition("\n")[0].removeprefix("Tree: ")
            expected = "heads from 1, and one 0"
            self.refuse("heads are not one tree", expected, reason, cause=error)


def read_lines(file: str | Path, reader: str) -> list[Line]:
    """All lines of a file."""
    path = Path(file)
    data = _read_bytes(path, reader)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = 1 + data.count(b"\n", 0, error.start)
        line = Line(reader, path, number, "")
        line.refuse("a line is not text", "UTF-8", error.reason, "Save the file as UTF-8.", error)
    texts = text.split("\n")
    if not texts[-1]:
        texts.pop()
    return [
        Line(reader, path, number, text.removesuffix("\r")) for number, text in enumerate(texts, 1)
    ]


def number_words(words: Iterable[str]) -> dict[str, int]:
    """A vocabulary: each word once, numbered from 0 in alphabetical order."""
    return {word: number for number, word in enumerate(sorted(set(words)))}


def data_folder(name: str, folder: str | Path | None = None) -> Path:
    """`folder`, or without one the folder `name` below the one that PENSTOCK_DATA names."""
    if folder is not None:
        return Path(folder)
    data = os.environ.get("PENSTOCK_DATA")
    if data:
        return Path(data) / name
    raise FileNotFoundError(
        report(
            f"{name}: no place to look for the data.",
            facts=[("folder", "not given"), ("PENSTOCK_DATA", "not set")],
            todo=f"Pass the place, or set PENSTOCK_DATA to the folder that holds {name}.",
        )
    )


def _read_bytes(path: Path, reader: str) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        facts = [("expected", "a whole file that gzip made"), ("found", str(error))]
        text = report(f"{reader}: a file cannot be unpacked.", where=str(path), facts=facts)
        raise TreeError(f"{text}\nFetch the file again.") from error
