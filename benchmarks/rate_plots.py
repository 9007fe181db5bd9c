"""Comparisons as horizontal bars: one panel each, with a scale of its own, and one page for all.

A bar is a candidate's median rate, its whisker the quartiles. What nothing can beat is a dashed
line. Candidates of Penstock stand out by colour; parts of the work are pale.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10

from benchmarks.figures import rounded
from benchmarks.harness import Comparison, Measurement
from benchmarks.svg import box, line, page, words

OURS, THEIRS, PART = "#4477aa", "#9aa5b1", "#d5b85a"

#: Pixels: the page's margin, a line of a panel, above and below its bars, its bars, their figures.
MARGIN, LINE, ABOVE, BELOW, BAR, FIGURE = 16, 19, 44, 44, 300, 150
TOP = 62

#: About as wide as a letter of the labels.
LETTER = 6.1


def rate_bars(title: str, where: str, comparisons: Sequence[Comparison]) -> str:
    """The text of an SVG file."""
    label = LETTER * max(len(name) for each in comparisons for name in _names(each)) + 10
    across = label + BAR + FIGURE
    columns = 1 if len(comparisons) == 1 else 2
    rows = [comparisons[at : at + columns] for at in range(0, len(comparisons), columns)]
    pieces = [
        words(MARGIN, 26, title, kind="bold"),
        words(MARGIN, 44, where, kind="quiet"),
    ]
    top = float(TOP)
    for row in rows:
        for column, comparison in enumerate(row):
            pieces += _panel(comparison, MARGIN + (across + MARGIN) * column, top, label)
        top += max(_height(comparison) for comparison in row)
    width = max(MARGIN + (across + MARGIN) * columns, 2 * MARGIN + LETTER * len(where))
    return page(max(width, 2 * MARGIN + 6.8 * len(title)), top + MARGIN, pieces)


def _names(comparison: Comparison) -> list[str]:
    return [*(entry.name for entry in comparison.measurements), *comparison.missing]


def _height(comparison: Comparison) -> float:
    return ABOVE + LINE * len(_bars(comparison)) + LINE * len(comparison.missing) + BELOW


def _bars(comparison: Comparison) -> list[Measurement]:
    """The bound is a line across the others."""
    return [entry for entry in comparison.measurements if entry.name != comparison.bound]


def _panel(comparison: Comparison, left: float, top: float, label: float) -> list[str]:
    bars, start = _bars(comparison), left + label
    bottom = top + _height(comparison) - BELOW
    step, ticks = _ticks(max(entry.rate.high for entry in comparison.measurements))
    scale = BAR / (step * (ticks - 1))
    pieces = [words(left, top + 14, comparison.title, kind="bold")]
    for number in range(ticks):
        at = start + number * step * scale
        pieces.append(line((at, top + ABOVE - 6), (at, bottom), "grid" if number else "axis"))
        pieces.append(words(at, bottom + 13, _tick(number * step), kind="quiet", anchor="middle"))
    unit = f"{comparison.unit}/s: median, quartiles"
    pieces.append(words(start + BAR / 2, bottom + 28, unit, kind="quiet", anchor="middle"))
    for number, entry in enumerate(bars):
        pieces += _bar(comparison, entry, start, top + ABOVE + LINE * number, scale)
    for number, (name, reason) in enumerate(comparison.missing.items(), start=len(bars)):
        baseline = top + ABOVE + LINE * number + 11
        pieces.append(words(start - 6, baseline, name, kind="quiet", anchor="end"))
        pieces.append(words(start + 6, baseline, f"left out: {reason}", kind="quiet"))
    if comparison.bound is not None:
        pieces += _bound(comparison, start, (top + ABOVE - 6, bottom), scale)
    return pieces


def _bar(
    comparison: Comparison, entry: Measurement, start: float, top: float, scale: float
) -> list[str]:
    rate, middle = entry.rate, top + 7
    share = "" if entry.share is None else f"  ({entry.share.middle:.0%} of {comparison.bound})"
    ends = [(start + rate.low * scale, middle), (start + rate.high * scale, middle)]
    return [
        words(start - 6, top + 11, entry.name, anchor="end"),
        box(start, top, rate.middle * scale, _colour(entry.name), 14),
        line(ends[0], ends[1], "whisker"),
        words(start + BAR + 10, top + 11, rounded(rate.middle) + share),
    ]


def _bound(
    comparison: Comparison, start: float, ends: tuple[float, float], scale: float
) -> list[str]:
    assert comparison.bound is not None
    rate = comparison[comparison.bound].rate.middle
    at = start + rate * scale
    name = f"{comparison.bound}: {rounded(rate)}"
    return [
        line((at, ends[0]), (at, ends[1]), "mark", "4 3"),
        words(at, ends[0] - 3, name, kind="warn", anchor="middle"),
    ]


def _colour(name: str) -> str:
    if name.startswith(("penstock", "ps.")):
        return OURS
    return PART if name == "products alone" else THEIRS


def _ticks(highest: float) -> tuple[float, int]:
    """The distance of round ticks, and how many go from zero to above the highest."""
    rough = highest / 4 or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return step, ceil(highest / step) + 1


def _tick(value: float) -> str:
    """Short: 20k, 5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:,.4g}"
