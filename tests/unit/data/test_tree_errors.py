"""What is not one tree is refused, with a message that names the place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.data import Tree
from penstock.errors import PenstockError, TreeError

VOCABULARY = {"a": 0, "b": 1}

REFUSED: dict[str, Callable[[], Tree]] = {
    "no node": lambda: Tree.from_parents([], []),
    "two roots": lambda: Tree.from_parents([-1, 0, -1], [0, 0, 0]),
    "no root": lambda: Tree.from_parents([1, 0], [0, 0]),
    "cycle": lambda: Tree.from_parents([-1, 2, 3, 1], [0, 0, 0, 0]),
    "own parent": lambda: Tree.from_parents([-1, 1], [0, 0]),
    "parent out of range": lambda: Tree.from_parents([-1, 0, 3], [0, 0, 0]),
    "parent below -1": lambda: Tree.from_parents([-1, -2], [0, 0]),
    "lengths differ": lambda: Tree.from_parents([-1, 0], [0]),
    "floats": lambda: Tree.from_parents([-1.0, 0.5], [0, 0]),
    "two dimensions": lambda: Tree.from_parents([[-1, 0]], [0, 0]),
    "wrong number of offsets": lambda: Tree.from_arrays([0, 0], [0, 1], [1], 0),
    "offsets end early": lambda: Tree.from_arrays([0, 0], [0, 0, 0], [1], 0),
    "offsets fall": lambda: Tree.from_arrays([0, 0, 0], [0, 2, 1, 2], [1, 2], 0),
    "child out of range": lambda: Tree.from_arrays([0, 0], [0, 1, 1], [2], 0),
    "two parents": lambda: Tree.from_arrays([0, 0, 0], [0, 2, 3, 3], [1, 2, 2], 0),
    "root is a child": lambda: Tree.from_arrays([0, 0], [0, 1, 1], [1], 1),
    "root out of range": lambda: Tree.from_arrays([0, 0], [0, 1, 1], [1], 2),
    "unconnected": lambda: Tree.from_arrays([0, 0, 0], [0, 1, 1, 1], [1], 0),
    "cycle beside the root": lambda: Tree.from_arrays([0, 0, 0], [0, 0, 1, 2], [2, 1], 0),
    "word as token": lambda: Tree.from_nested((1, "two")),
    "empty tuple": lambda: Tree.from_nested((1, ())),
    "bracket not closed": lambda: Tree.from_brackets("( a ( b", VOCABULARY),
    "bracket not opened": lambda: Tree.from_brackets(") a", VOCABULARY),
    "empty brackets": lambda: Tree.from_brackets("( a ( ) )", VOCABULARY),
    "second tree": lambda: Tree.from_brackets("( a b ) ( a b )", VOCABULARY),
    "no text": lambda: Tree.from_brackets("  ", VOCABULARY),
    "unknown word": lambda: Tree.from_brackets("( a zebra )", VOCABULARY),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_one_tree_is_refused(make: Callable[[], Tree]) -> None:
    with pytest.raises(TreeError, match=r"^Tree"):
        make()


def test_the_messages_read_as_they_should(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, make in REFUSED.items():
        with pytest.raises(TreeError) as refusal:
            make()
        texts.append(f"# {name}\n{refusal.value}\n")
    golden("tree_errors", "\n".join(texts))


def test_a_tree_error_is_a_value_error_of_ours() -> None:
    assert issubclass(TreeError, PenstockError)
    assert issubclass(TreeError, ValueError)
