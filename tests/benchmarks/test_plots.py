"""Bars are as long as their parts, and the longest fills its panel."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import granularity
from benchmarks.plots import BAR, COLOURS, Panel, stacked_bars

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
