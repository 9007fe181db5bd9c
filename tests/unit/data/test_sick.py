"""SICK's parent files become trees and scores; what is wrong is refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.data.sick import SentencePair, read_pairs, read_vocabulary
from penstock.errors import TreeError

FILES = {
    "a.toks": "Two dogs fight\nNobody sleeps\n",
    "b.toks": "Dogs are fighting now\nA man sleeps\n",
    "a.parents": "2 3 0\n2 0\n",
    "b.parents": "3 3 0 3\n2 3 0\n",
    "sim.txt": "4.5\n1\n",
}


def write_split(folder: Path, split: str = "train", **changed: str) -> Path:
    """A split of two pairs; `a_toks="..."` writes other text to a.toks."""
    place = folder / split
    place.mkdir()
    for name, text in FILES.items():
        (place / name).write_text(changed.get(name.replace(".", "_"), text))
    return place


def read(folder: Path) -> list[SentencePair]:
    return read_pairs("train", read_vocabulary(["train"], folder=folder), folder=folder)


def test_a_pair_is_two_trees_and_a_score(tmp_path: Path) -> None:
    write_split(tmp_path)
    first, second = read(tmp_path)
    assert first.left.parents().tolist() == [1, 2, -1]
    assert first.right.parents().tolist() == [2, 2, -1, 2]
    assert [pair.similarity for pair in (first, second)] == [4.5, 1.0]
    assert int(second.right.root) == 2


def test_node_i_has_the_token_of_word_i(tmp_path: Path) -> None:
    write_split(tmp_path)
    vocabulary = read_vocabulary(["train"], folder=tmp_path)
    pair = read_pairs("train", vocabulary, folder=tmp_path)[0]
    words = {number: word for word, number in vocabulary.items()}
    assert [words[token] for token in pair.right.token.tolist()] == FILES["b.toks"].split()[:4]


def test_a_vocabulary_is_in_alphabetical_order_over_both_sides(tmp_path: Path) -> None:
    write_split(tmp_path)
    vocabulary = read_vocabulary(["train"], folder=tmp_path)
    assert list(vocabulary) == sorted(set((FILES["a.toks"] + FILES["b.toks"]).split()))
    assert list(vocabulary.values()) == list(range(len(vocabulary)))


def test_words_that_are_not_known_become_one_token(tmp_path: Path) -> None:
    write_split(tmp_path)
    pair = read_pairs("train", {"dogs": 1}, folder=tmp_path, unknown=0)[0]
    assert pair.left.token.tolist() == [0, 1, 0]


def test_the_environment_says_where_the_data_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sick").mkdir()
    write_split(tmp_path / "sick", "dev")
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    assert len(read_pairs("dev", read_vocabulary(["dev"]))) == 2


def test_without_a_place_the_error_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set PENSTOCK_DATA to the folder that holds"):
        read_vocabulary()


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.toks"):
        read_pairs("train", {}, folder=tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "line", "reason"),
    [
        ("a.parents", "2 3 0\n2\n", 2, "the wrong number of heads"),
        ("a.parents", "2 x 0\n2 0\n", 1, "a head is not a number"),
        ("sim.txt", "4.5\nhigh\n", 2, "a score is not in its range"),
        ("sim.txt", "4.5\n5.5\n", 2, "a score is not in its range"),
        ("sim.txt", "nan\n1\n", 1, "a score is not in its range"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(
    tmp_path: Path, file: str, text: str, line: int, reason: str
) -> None:
    place = write_split(tmp_path, **{file.replace(".", "_"): text})
    with pytest.raises(TreeError, match=reason) as refusal:
        read(tmp_path)
    assert f"at {place / file}:{line}\n" in str(refusal.value)


@pytest.mark.parametrize(
    ("parents", "reason"),
    [
        ("2 3 0\n2 1\n", "a tree has exactly one root."),
        ("2 3 0\n0 0\n", "a tree has exactly one root."),
        ("2 3 0\n0 3\n", "an index in parents is out of range."),
        ("2 3 0\n0 2\n", "the parents of a node go round in a cycle."),
    ],
)
def test_heads_that_are_not_one_tree_are_named_by_file_and_number(
    tmp_path: Path, parents: str, reason: str
) -> None:
    place = write_split(tmp_path, a_parents=parents)
    with pytest.raises(TreeError) as refusal:
        read(tmp_path)
    assert str(refusal.value) == (
        "sick: heads are not one tree.\n"
        f"  at {place / 'a.parents'}:2\n"
        "  expected  heads from 1, and one 0\n"
        f"  found     {reason}\n"
        "Mend the line, or leave out what it belongs to."
    )


def test_a_word_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    place = write_split(tmp_path)
    with pytest.raises(TreeError) as refusal:
        read_pairs("train", {"Two": 0}, folder=tmp_path)
    assert str(refusal.value) == (
        "sick: a word is not in the vocabulary.\n"
        f"  at {place / 'a.toks'}:1\n"
        "  expected  one of 1 words\n"
        "  found     'dogs'\n"
        "Add the word, or pass unknown= with the token of words that are not known."
    )


def test_constituents_are_binary_trees_with_children_in_the_order_of_words(tmp_path: Path) -> None:
    place = write_split(tmp_path, a_toks="Two dogs fight\n", a_parents="2 3 0\n", sim_txt="4\n")
    (place / "b.toks").write_text("Dogs bark\n")
    (place / "a.cparents").write_text("4 4 5 5 0\n")
    (place / "b.cparents").write_text("3 3 0\n")
    words = {"Two": 1, "dogs": 2, "fight": 3, "Dogs": 4, "bark": 5}
    (pair,) = read_pairs("train", words, folder=tmp_path, trees="constituency")
    assert pair.left.token.tolist() == [1, 2, 3, -1, -1]
    root = int(pair.left.root)
    assert [int(pair.left.left(root)), int(pair.left.right(root))] == [3, 2]
    assert pair.right.children.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("constituents", "reason"),
    [
        ("4 4 5 0", "the wrong number of heads"),
        ("2 3 4 5 0", "constituents are not binary"),
        ("4 4 4 5 0", "constituents are not binary"),
        ("4 4 5 5 5", "heads are not one tree"),
    ],
)
def test_constituents_that_are_not_binary_are_refused(
    tmp_path: Path, constituents: str, reason: str
) -> None:
    place = write_split(tmp_path, a_toks="Two dogs fight\n")
    (place / "a.cparents").write_text(constituents)
    with pytest.raises(TreeError, match=reason) as refusal:
        read_pairs("train", {}, folder=tmp_path, unknown=0, trees="constituency")
    assert f"at {place / 'a.cparents'}:1\n" in str(refusal.value)


def test_other_kinds_of_trees_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Pass one of dependency, constituency"):
        read_pairs("train", {}, folder=tmp_path, trees="decision")


@pytest.mark.parametrize("name", list(FILES))
def test_files_that_differ_in_length_are_named(tmp_path: Path, name: str) -> None:
    shorter = FILES[name].splitlines(keepends=True)[0]
    write_split(tmp_path, **{name.replace(".", "_"): shorter})
    with pytest.raises(TreeError, match="files of one split differ in length") as refusal:
        read_pairs("train", {}, folder=tmp_path, unknown=0)
    assert name in str(refusal.value)
    assert "1 lines" in str(refusal.value)
