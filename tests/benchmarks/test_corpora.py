"""Trees are read where PENSTOCK_DATA says, and made up in their likeness elsewhere."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks import corpora


@pytest.fixture
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)


@pytest.mark.usefixtures("_no_data")
def test_made_up_pairs_are_shaped_like_sick() -> None:
    corpus = corpora.sick(400)
    trees = [tree for pair in corpus.pairs for tree in (pair.left, pair.right)]
    arity = np.concatenate([np.diff(tree.start.numpy()) for tree in trees])
    inner = arity[arity > 0]
    assert corpus.source == "made-up trees like SICK's"
    assert np.mean([len(tree) for tree in trees]) == pytest.approx(9.7, abs=0.5)
    assert (arity == 0).sum() / len(trees) == pytest.approx(4.9, abs=0.4)
    shares = [float((inner == number).mean()) for number in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.56, 0.19, 0.14, 0.08], abs=0.04)
    assert all(1 <= pair.similarity <= 5 for pair in corpus.pairs)


@pytest.mark.usefixtures("_no_data")
def test_made_up_trees_are_the_same_every_time() -> None:
    first, second = ([pair.left.token.tolist() for pair in corpora.sick(5).pairs] for _ in range(2))
    assert first == second
    assert corpora.listops(3).source == "made-up trees like ListOps'"


def test_expressions_are_read_as_binary_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "listops"
    folder.mkdir()
    with gzip.open(folder / "test_d20s.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("7\t( ( ( [MAX 1 ) 7 ) ] )\n3\t3\n")
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    corpus = corpora.listops(5)
    assert [len(tree) for tree in corpus.trees] == [7, 1]
    assert corpus.source == "ListOps, test set d20s"


def test_pairs_are_read_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sick" / "train"
    folder.mkdir(parents=True)
    for name, text in {"toks": "Dogs bark\n", "parents": "2 0\n"}.items():
        for side in "ab":
            (folder / f"{side}.{name}").write_text(text)
    (folder / "sim.txt").write_text("5\n")
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    corpus = corpora.sick(5)
    assert (len(corpus.pairs), corpus.vocabulary) == (1, 2)
    assert corpus.source == "SICK, training split"
