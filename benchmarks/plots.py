"""Stacked bars as SVG, without a plotting library: one panel beside the other, one legend.

Every panel has a scale of its own, as panels may differ by orders of magnitude; the longest bar
fills it and every bar shows its total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.figures import rounded

#: From the first part of a bar on.
COLOURS = ("#4477aa", "#ccbb44", "#ee6677", "#228833", "#aa3377", "#66ccee")

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
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(8, 16, title, "bold"),
        *_legend(parts),
    ]
    for number, panel in enumerate(panels):
        pieces += _panel(panel, (LABEL + BAR + NUMBER) * number)
    return "\n".join([*pieces, "</svg>"]) + "\n"


def _legend(parts: Sequence[str]) -> list[str]:
    pieces = []
    for number, part in enumerate(parts):
        left = 8 + 150 * number
        pieces += [_box(left, 24, 10, number), _text(left + 14, 33, part)]
    return pieces


def _panel(panel: Panel, left: int) -> list[str]:
    longest = max(sum(parts) for _, parts in panel.bars) or 1.0
    pieces = [_text(left + 8, TOP - 8, panel.title, "bold")]
    for line, (label, parts) in enumerate(panel.bars):
        top, at = TOP + LINE * line, float(left + LABEL)
        pieces.append(_text(left + 8, top + 11, label))
        for number, part in enumerate(parts):
            extent = BAR * part / longest
            pieces.append(_box(at, top + 2, extent, number))
            at += extent
        pieces.append(_text(at + 4, top + 11, rounded(sum(parts))))
    return pieces


def _box(left: float, top: float, width: float, colour: int) -> str:
    fill = COLOURS[colour % len(COLOURS)]
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="10" fill="{fill}"/>'


def _text(left: float, bottom: float, text: str, weight: str = "normal") -> str:
    place = f'x="{left:.1f}" y="{bottom}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"
