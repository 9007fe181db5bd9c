"""Stacked bars as SVG, without a plotting library: one panel beside the other, one legend.

Every panel has a scale of its own, as panels may differ by orders of magnitude; the longest bar
fills it and every bar shows its total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import rounded
from benchmarks.svg import COLOURS, box, page, words

LABEL, BAR, NUMBER, LINE, TOP = 120, 220, 60, 18, 62


@dataclass(frozen=True)
class Panel:
    """Bars that are compared with each other."""

    title: str
    #: The label of each bar, and its parts from left to right.
    bars: tuple[tuple[str, tuple[float, ...]], ...]


def stacked_bars(title: str, parts: Sequence[str], panels: Sequence[Panel]) -> str:
    """The text of an SVG file."""
    width = (LABEL + BAR + NUMBER) * len(panels)
    height = TOP + LINE * max(len(panel.bars) for panel in panels) + 10
    pieces = [words(8, 16, title, kind="bold"), *_legend(parts)]
    for number, panel in enumerate(panels):
        pieces += _panel(panel, (LABEL + BAR + NUMBER) * number)
    return page(width, height, pieces)


def _legend(parts: Sequence[str]) -> list[str]:
    pieces = []
    for number, part in enumerate(parts):
        left = 8 + 150 * number
        pieces += [_part(left, 24, 10, number), words(left + 14, 33, part)]
    return pieces


def _panel(panel: Panel, left: int) -> list[str]:
    longest = max(sum(parts) for _, parts in panel.bars) or 1.0
    pieces = [words(left + 8, TOP - 8, panel.title, kind="bold")]
    for line, (label, parts) in enumerate(panel.bars):
        top, at = TOP + LINE * line, float(left + LABEL)
        pieces.append(words(left + 8, top + 11, label))
        for number, part in enumerate(parts):
            extent = BAR * part / longest
            pieces.append(_part(at, top + 2, extent, number))
            at += extent
        pieces.append(words(at + 4, top + 11, rounded(sum(parts))))
    return pieces


def _part(left: float, top: float, width: float, number: int) -> str:
    return box(left, top, width, COLOURS[number % len(COLOURS)])
