"""The harness checks before it times, takes ratios within rounds, and writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.harness import Measurement, Spread, compare


def test_candidates_that_disagree_are_not_timed() -> None:
    candidates = {"one": lambda: torch.ones(2), "other": lambda: torch.zeros(2)}
    with pytest.raises(AssertionError, match="other and one disagree"):
        compare("claim", candidates, reference="one")


def test_every_candidate_is_timed_once_a_round() -> None:
    candidates = {"a": lambda: torch.ones(2), "b": lambda: torch.full((2,), 1.0)}
    result = compare("claim", candidates, reference="a", rounds=3, least_seconds=0.0)
    assert [len(entry.seconds) for entry in result.measurements] == [3, 3]
    assert result["a"].ratio == Spread(1.0, 1.0, 1.0)


def test_bounds_are_timed_but_not_compared() -> None:
    result = compare(
        "claim", {"a": lambda: 1}, reference="a", bounds={"part": lambda: 2}, least_seconds=0.0
    )
    assert len(result["part"].seconds) == 9


def test_results_survive_as_json_and_markdown(tmp_path: Path) -> None:
    result = compare("claim", {"a": lambda: 1}, reference="a", work=5, rounds=2, least_seconds=0.0)
    result.write_json(tmp_path / "claim.json")
    stored = json.loads((tmp_path / "claim.json").read_text())
    assert stored["work"] == 5
    assert {"commit", "date", "torch", "threads", "processor"} <= stored["environment"].keys()
    assert Measurement(**stored["measurements"][0]).seconds == result["a"].seconds
    assert result.markdown().startswith("| claim | a | ")


def test_a_spread_is_the_quartiles() -> None:
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
