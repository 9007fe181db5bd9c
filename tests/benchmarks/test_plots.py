"""Bars are as long as what they show; figures, axes and what nothing can beat can be read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import granularity
from benchmarks.figures import Spread
from benchmarks.harness import Comparison, Measurement
from benchmarks.plots import BAR, Panel, stacked_bars
from benchmarks.rate_plots import OURS, THEIRS, rate_bars
from benchmarks.size_plots import APART, times_by_size
from benchmarks.svg import COLOURS

SVG = "{http://www.w3.org/2000/svg}"
PANELS = [
    Panel("small & few", (("a", (1.0, 2.0)), ("b", (0.5, 0.5)))),
    Panel("large", (("a", (100.0, 0.0)), ("b", (0.0, 25.0)))),
]


def boxes(colour: str) -> list[float]:
    root = ElementTree.fromstring(stacked_bars("Times", ("one", "two"), PANELS))
    found = [box for box in root.iter(f"{SVG}rect") if box.get("fill") == colour]
    return [float(box.get("width", "")) for box in found[1:]]  # the first is in the legend


def test_parts_are_drawn_to_the_scale_of_their_panel() -> None:
    assert boxes(COLOURS[0]) == pytest.approx([BAR / 3, BAR / 6, BAR, 0], abs=0.1)
    assert boxes(COLOURS[1]) == pytest.approx([2 * BAR / 3, BAR / 6, 0, BAR / 4], abs=0.1)


def test_labels_parts_and_totals_can_be_read() -> None:
    root = ElementTree.fromstring(stacked_bars("Times", ("one", "two"), PANELS))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:3] == ["Times", "one", "two"]
    assert {"small & few", "large", "a", "b", "3", "25"} <= set(texts)


def test_granularity_draws_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    path = tmp_path / "plot.svg"
    sizes = "--batch 2 --hidden 3 --rounds 1 --trees random --granularities op --policies rank"
    granularity.main([*sizes.split(), "--plot", str(path)])
    assert "op, rank" in path.read_text(encoding="utf-8")


def comparison(bound: str | None = None) -> Comparison:
    def entry(name: str, rate: float) -> Measurement:
        share = Spread(rate / 200, rate / 200, rate / 200) if bound else None
        return Measurement(
            name, [1 / rate], Spread(rate - 5, rate, rate + 5), Spread(1, 1, 1), share
        )

    entries = [entry("penstock", 100.0), entry("a & b", 50.0)]
    entries += [entry(bound, 200.0)] if bound else []
    return Comparison("small", "trees", 1, "a & b", bound, {}, entries, {"c": "no compiler"})


def drawn(*comparisons: Comparison) -> ElementTree.Element:
    return ElementTree.fromstring(rate_bars("Claim: so it is.", "here", comparisons))


def test_rates_are_drawn_to_one_scale_and_ours_stand_out() -> None:
    root = drawn(comparison())
    (ours,) = (box for box in root.iter(f"{SVG}rect") if box.get("fill") == OURS)
    (theirs,) = (box for box in root.iter(f"{SVG}rect") if box.get("fill") == THEIRS)
    assert float(ours.get("width", "")) == pytest.approx(
        2 * float(theirs.get("width", "")), abs=0.2
    )


def test_a_plot_has_axes_figures_and_what_was_left_out() -> None:
    texts = [text.text for text in drawn(comparison()).iter(f"{SVG}text")]
    assert texts[:2] == ["Claim: so it is.", "here"]
    assert {"0", "50", "100", "trees/s: median, quartiles", "a & b"} <= set(texts)
    assert "left out: no compiler" in texts


def test_what_nothing_can_beat_is_a_line_and_no_bar() -> None:
    root = drawn(comparison("floor"), comparison("floor"), comparison())
    marks = [line for line in root.iter(f"{SVG}line") if line.get("class") == "mark"]
    assert len(marks) == 2
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("floor: 200") == 2
    assert "100  (50% of floor)" in texts
    assert "floor" not in texts


def sized(work: int, *seconds: float) -> Comparison:
    one = Spread(1, 1, 1)
    entries = [
        Measurement(f"way {number}", [each], one, one, None) for number, each in enumerate(seconds)
    ]
    return Comparison("planning", "trees", work, "way 0", None, {}, entries)


def test_linear_growth_is_as_steep_as_the_dotted_lines() -> None:
    text = times_by_size("Claim", "here", [sized(10, 1e-3, 2e-3), sized(100, 1e-2, 2e-2)])
    root = ElementTree.fromstring(text)

    def slope(start: tuple[float, float], end: tuple[float, float]) -> float:
        return (end[1] - start[1]) / (end[0] - start[0])

    def ends(series: ElementTree.Element) -> list[tuple[float, float]]:
        pairs = [point.split(",") for point in series.get("points", "").split()]
        return [(float(left), float(top)) for left, top in pairs]

    slopes = [slope(*ends(series)) for series in root.iter(f"{SVG}polyline")]
    dotted = [
        slope(*[(float(each.get(f"x{n}", "")), float(each.get(f"y{n}", ""))) for n in "12"])
        for each in root.iter(f"{SVG}line")
        if each.get("stroke-dasharray")
    ]
    assert len(slopes) == 2
    assert slopes + dotted == pytest.approx([slopes[0]] * (2 + len(dotted)), rel=1e-3)


def test_names_at_the_ends_of_lines_do_not_meet() -> None:
    text = times_by_size("Claim", "here", [sized(10, 1, 2, 3), sized(100, 5, 5, 5)])
    texts = list(ElementTree.fromstring(text).iter(f"{SVG}text"))
    names = [float(each.get("y", "")) for each in texts if (each.text or "").startswith("way")]
    assert sorted(b - a for a, b in pairwise(names)) == [APART, APART]
    shown = {each.text for each in texts}
    assert {"trees", "milliseconds a call, median", "10", "100"} <= shown


def test_plots_have_colours_for_dark_pages() -> None:
    for text in (rate_bars("a", "b", [comparison()]), stacked_bars("Times", ("one",), PANELS)):
        assert "prefers-color-scheme: dark" in text
