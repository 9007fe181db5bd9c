"""The harness checks before it times, and takes ratios within rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.baselines.products import Layer
from benchmarks.figures import Spread
from benchmarks.floor import WAYS, ProductFloor
from benchmarks.harness import by_item, compare


def test_candidates_that_disagree_are_not_timed() -> None:
    candidates = {"one": lambda: torch.ones(2), "other": lambda: torch.zeros(2)}
    with pytest.raises(AssertionError, match="other and one disagree"):
        compare("claim", candidates, reference="one")


def test_differences_count_relative_to_the_size_of_a_tensor() -> None:
    small = {"one": lambda: (torch.full((2,), 1e-6),), "other": lambda: (torch.zeros(2),)}
    with pytest.raises(AssertionError, match="other and one disagree"):
        compare("claim", small, reference="one")
    large = {"one": lambda: torch.tensor([0.0, 1e6]), "other": lambda: torch.tensor([1.0, 1e6])}
    compare("claim", large, reference="one", rounds=1, least_seconds=0.0)


def test_a_result_of_another_form_disagrees() -> None:
    forms = {"one": lambda: torch.ones(2), "other": lambda: (torch.ones(2), torch.ones(2))}
    with pytest.raises(AssertionError, match="other and one disagree"):
        compare("claim", forms, reference="one")


def test_every_candidate_is_timed_once_a_round() -> None:
    candidates = {"a": lambda: torch.ones(2), "b": lambda: torch.full((2,), 1.0)}
    result = compare("claim", candidates, reference="a", rounds=3, least_seconds=0.0)
    assert [len(entry.seconds) for entry in result.measurements] == [3, 3]
    assert result["a"].ratio == Spread(1.0, 1.0, 1.0)


def test_parts_are_timed_but_not_compared() -> None:
    result = compare(
        "claim", {"a": lambda: 1}, reference="a", parts={"part": lambda: 2}, least_seconds=0.0
    )
    assert len(result["part"].seconds) == 9
    assert result["a"].share is None


def test_a_bound_is_a_part_that_has_all_of_its_own_speed() -> None:
    result = compare(
        "claim",
        {"a": lambda: 1},
        reference="a",
        parts={"least": lambda: 2},
        bound="least",
        least_seconds=0.0,
    )
    assert result["least"].share == Spread(1.0, 1.0, 1.0)
    assert result.figures().headings[-1] == "of least"
    assert result.figures().rows[-1][-1] == "100%"


class Elsewhere:
    """A candidate that says how long it took."""

    def __call__(self) -> int:
        return 1

    def seconds_per_call(self, repeats: int) -> float:
        return 0.25


class Known:
    """A floor that counts how often it was looked at."""

    name = "least"

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> None:
        self.looks += 1

    def seconds(self) -> float:
        return 0.125


def test_a_candidate_may_time_itself() -> None:
    result = compare("claim", {"a": lambda: 1, "b": Elsewhere()}, reference="a", rounds=3)
    assert result["b"].seconds == [0.25, 0.25, 0.25]


def test_what_the_first_calls_build_does_not_decide_how_often_a_call_is_made() -> None:
    class Building:
        """Takes a second at its second call, a millisecond at others."""

        calls, repeats = 0, list[int]()

        def __call__(self) -> torch.Tensor:
            return torch.ones(2)

        def seconds_per_call(self, repeats: int) -> float:
            self.calls += 1
            self.repeats.append(repeats)
            return 1.0 if self.calls == 2 else 1e-3

    building = Building()
    compare("claim", {"a": building}, reference="a", rounds=2, least_seconds=0.05)
    assert building.repeats[-2:] == [50, 50]


def test_a_floor_is_looked_for_in_every_round_and_has_a_line() -> None:
    floor = Known()
    result = compare("claim", {"b": Elsewhere()}, reference="b", rounds=3, floor=floor)
    assert floor.looks == 3
    assert result.bound == "least"
    assert result["least"].seconds == [0.125] * 3
    assert result["b"].share == Spread(0.5, 0.5, 0.5)


def test_the_floor_of_products_is_their_operations_at_the_best_rate() -> None:
    floor = ProductFloor([Layer(10, 20, 30)], training=False)
    floor.look()
    first = floor.best_rate
    floor.look()
    assert floor.best_rate >= first > 0
    assert floor.seconds() == 2 * 10 * 20 * 30 / floor.best_rate


@pytest.mark.parametrize("multiply", WAYS)
def test_all_ways_to_multiply_are_products(multiply: Callable[..., torch.Tensor]) -> None:
    left, right = torch.randn(70, 30), torch.randn(30, 20)
    torch.testing.assert_close(multiply(left, right), left @ right)


def test_a_candidate_that_cannot_be_run_has_a_line_that_says_why() -> None:
    result = compare(
        "claim", {"a": Elsewhere()}, reference="a", missing={"b": "no compiler"}, floor=Known()
    )
    assert result.figures().rows[-1] == ("b", "-", "left out: no compiler", "-", "-")


def test_figures_have_a_row_for_each_candidate() -> None:
    result = compare(
        "claim", {"a": lambda: 1}, reference="a", work=5, unit="trees", rounds=2, least_seconds=0.0
    )
    figures = result.figures()
    assert figures.headings == ("candidate", "ms a call", "trees/s", "times as fast as a")
    assert [row[0] for row in figures.rows] == ["a"]


def test_times_by_item_have_a_column_for_each_size() -> None:
    results = [
        compare("claim", {"a": Elsewhere()}, reference="a", work=work, unit="trees")
        for work in (1, 1000)
    ]
    figures = by_item("ms", results, units_a_second=1e3)
    assert figures.headings == ("candidate", "1 trees", "1,000 trees")
    assert figures.rows == (("a", "250", "0.25"),)


def test_a_spread_is_the_quartiles() -> None:
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    assert str(Spread(0.5, 1234.5, 2)) == "1,234 (0.5 to 2)"
