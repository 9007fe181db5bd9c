"""Comparisons of one kind at several sizes as lines: time over size, both axes logarithmic.

Straight lines as steep as the dotted ones are linear growth. Names stand at the ends of the lines,
moved apart where they would meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from statistics import median

from benchmarks.harness import Comparison
from benchmarks.svg import COLOURS, dot, line, page, polyline, words

#: Pixels: the plotting area, and what is around it.
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 520, 320, 70, 84, 250, 56

#: Between two names.
APART = 15

#: From a size or a time to a place.
Scale = Callable[[float], float]


def times_by_size(title: str, where: str, comparisons: Sequence[Comparison]) -> str:
    """The text of an SVG file."""
    sizes = [comparison.work for comparison in comparisons]
    times = {
        entry.name: [1e3 * median(each[entry.name].seconds) for each in comparisons]
        for entry in comparisons[0].measurements
    }
    every = [time for series in times.values() for time in series]
    across = _scale(min(sizes), max(sizes), LEFT, LEFT + WIDTH)
    up = _scale(min(every), max(every), TOP + HEIGHT, TOP)
    pieces = [words(16, 26, title, kind="bold"), words(16, 44, where, kind="quiet")]
    pieces += _axes(sizes, every, across, up, comparisons[0].unit)
    bottoms = _apart({name: up(series[-1]) for name, series in times.items()})
    for number, (name, series) in enumerate(times.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(across(size), up(time)) for size, time in zip(sizes, series, strict=True)]
        pieces += [polyline(points, colour), *(dot(point, colour) for point in points)]
        pieces.append(dot((LEFT + WIDTH + 16, bottoms[name]), colour))
        pieces.append(words(LEFT + WIDTH + 26, bottoms[name] + 4, name))
    return page(LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM, pieces)


def _scale(least: float, most: float, start: float, end: float) -> Scale:
    """Whole powers of ten fill the axis."""
    low, high = floor(log10(least)), ceil(log10(most))
    high = max(high, low + 1)
    return lambda value: start + (end - start) * (log10(value) - low) / (high - low)


def _axes(
    sizes: Sequence[float], times: Sequence[float], across: Scale, up: Scale, unit: str
) -> list[str]:
    bottom, right = TOP + HEIGHT, LEFT + WIDTH
    pieces = []
    for power in _powers(times):
        place = up(power)
        pieces.append(line((LEFT, place), (right, place), "grid"))
        pieces.append(words(LEFT - 6, place + 4, f"{power:,g}", kind="quiet", anchor="end"))
    for power in _powers(sizes):
        place = across(power)
        pieces.append(line((place, TOP), (place, bottom), "grid"))
        pieces.append(words(place, bottom + 15, f"{power:,g}", kind="quiet", anchor="middle"))
    pieces += _linear(sizes, times, across, up)
    pieces += [
        line((LEFT, TOP), (LEFT, bottom), "axis"),
        line((LEFT, bottom), (right, bottom), "axis"),
    ]
    pieces.append(words((LEFT + right) / 2, bottom + 34, unit, kind="quiet", anchor="middle"))
    pieces.append(words(16, TOP - 12, "milliseconds a call, median", kind="quiet"))
    return pieces


def _linear(sizes: Sequence[float], times: Sequence[float], across: Scale, up: Scale) -> list[str]:
    """What linear growth looks like, from each power of ten at the smallest size."""
    least, most = min(sizes), max(sizes)
    top = _powers(times)[-1]
    pieces = []
    for power in _powers(times)[:-1]:
        # A line ends at the largest size, or where it leaves the picture.
        size = min(most, least * top / power)
        ends = (across(least), up(power)), (across(size), up(power * size / least))
        pieces.append(line(*ends, "axis", "1 4"))
    return pieces


def _powers(values: Sequence[float]) -> list[float]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _apart(places: dict[str, float]) -> dict[str, float]:
    """The same places from top to bottom, none nearer to the one above than `APART`."""
    moved, last = {}, float("-inf")
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        last = moved[name] = max(place, last + APART)
    return moved
