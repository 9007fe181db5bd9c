"""The scripts in examples/ run as they are, on their small problems."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

#: Started by torchrun, and tested in tests/processes.
OF_PROCESSES = {"two_process_pipeline.py"}

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = [path for path in sorted(FOLDER.glob("*.py")) if path.name not in OF_PROCESSES]

#: What makes an example smaller than it is by itself.
SMALLER = {
    "decoding": ["--steps", "4"],
    "dqn_agent": ["--rounds", "2"],
    "early_exit": ["--steps", "10"],
    "listops_tree_lstm": ["--epochs", "1"],
    "recursive_reasoning": ["--steps", "3"],
    "sentiment": ["--epochs", "1"],
    "sick_relatedness": ["--epochs", "1"],
    "trip_counts": ["--problems", "5"],
}


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("unchanged_torch", "_one_thread")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_is(path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path), *SMALLER.get(path.stem, [])])
    torch.set_default_dtype(torch.float32)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(torch.float64)
    assert capsys.readouterr().out


def test_word_vectors_are_read_as_glove_writes_them(tmp_path):
    read_vectors = runpy.run_path(str(FOLDER / "sick_relatedness.py"))["read_vectors"]
    (tmp_path / "vectors.txt").write_text("a 1 0.5\nA -1 0.25\nthe 2 2\nunused 3 3\n")
    embedding = read_vectors(tmp_path / "vectors.txt", {"A": 0, "The": 1, "xyz": 2})
    assert embedding.weight[:2].tolist() == [[-1, 0.25], [2, 2]]
    assert embedding.weight[2].abs().max() <= 0.05
    assert not embedding.weight.requires_grad
    (tmp_path / "wrong.txt").write_text("a 1 0.5\nthe 2\n")
    with pytest.raises(ValueError, match="the same number of numbers"):
        read_vectors(tmp_path / "wrong.txt", {"a": 0, "the": 1})
