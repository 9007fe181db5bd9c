"""What ran, as figures: the schedule in time, the width of each launch, the rows of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p
from typing import TYPE_CHECKING

from penstock.profiling.records import LaunchRecord
from penstock.profiling.rows import InstanceRow
from penstock.profiling.view.details import Json, detail
from penstock.profiling.view.row_layout import lay_out_rows
from penstock.profiling.words import bytes_in_words, counted, seconds_in_words

if TYPE_CHECKING:
    from penstock.profiling.profile import Profile

#: Launches that are drawn, at most.
MOST_DRAWN = 3_000

SCALE = "Viridis"

#: The colours of bars with few and with many rows.
NARROW, WIDE = (222, 235, 247), (8, 48, 107)


def launch_details(launches: Sequence[LaunchRecord]) -> Json:
    """What to tell about each launch."""
    return {f"launch{number}": _detail(number, item) for number, item in enumerate(launches)}


def _detail(number: int, launch: LaunchRecord) -> Json:
    lines = [
        f"rows: {launch.rows:,} of {launch.call.instances:,} instances of {launch.call.name}",
        f"shapes: {', '.join(str(list(shape)) for shape in launch.shapes)}",
        f"operands: {', '.join(launch.sources)}",
        f"device: {launch.device}, {seconds_in_words(launch.seconds)}",
        f"gathered {bytes_in_words(launch.gathered_bytes)}, "
        f"written {bytes_in_words(launch.written_bytes)}",
    ]
    return detail(f"Launch {number}: {launch.block}", lines, launch.node.source)


def timeline_figure(profile: Profile, launches: Sequence[LaunchRecord]) -> Json:
    """When each launch ran and how wide it was; building, planning, reads and waits beside it."""
    start = min((call.began for call in profile.calls), default=0.0)
    other = [
        ("building", built.began, built.seconds, f"build {built.block}, once")
        for built in profile.builds[:MOST_DRAWN]
    ]
    other += [
        ("planning", plan.began, plan.seconds, f"plan {plan.call.name}")
        for plan in profile.plans[:MOST_DRAWN]
    ]
    other += [("reads", r.began, r.seconds, "read") for r in profile.reads[:MOST_DRAWN]]
    other += [
        (wait.device, wait.began, wait.seconds, f"wait {wait.reason}")
        for wait in profile.waits[:MOST_DRAWN]
    ]
    return {
        "data": [_other_bars(other, start), _launch_bars(launches, start)],
        "layout": {
            "barmode": "overlay",
            "xaxis": {"title": {"text": "milliseconds"}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "automargin": True, "fixedrange": True},
            "showlegend": False,
            "height": 100 + 36 * len({*(item.device for item in launches), *_rows_of(other)}),
        },
    }


def _rows_of(items: Sequence[tuple[str, float, float, str]]) -> set[str]:
    return {row for row, _, _, _ in items}


def _launch_bars(launches: Sequence[LaunchRecord], start: float) -> Json:
    return {
        "type": "bar",
        "orientation": "h",
        "base": [1e3 * (item.began - start) for item in launches],
        "x": [1e3 * item.seconds for item in launches],
        "y": [item.device for item in launches],
        "customdata": [f"launch{number}" for number in range(len(launches))],
        "hovertext": [
            f"{item.block}: {counted(item.rows, 'row')}, {seconds_in_words(item.seconds)}"
            for item in launches
        ],
        "hoverinfo": "text",
        "marker": {"color": _shades([item.rows for item in launches])},
    }


def _shades(widths: Sequence[int]) -> list[str]:
    """A colour for each width, by its logarithm: the more rows, the darker."""
    most = log1p(max(widths, default=1))
    shares = [log1p(width) / most if most else 1.0 for width in widths]
    mixed = [
        [round(light + share * (dark - light)) for light, dark in zip(NARROW, WIDE, strict=True)]
        for share in shares
    ]
    return [f"rgb({red},{green},{blue})" for red, green, blue in mixed]


def _other_bars(items: Sequence[tuple[str, float, float, str]], start: float) -> Json:
    return {
        "type": "bar",
        "orientation": "h",
        "base": [1e3 * (began - start) for _, began, _, _ in items],
        "x": [1e3 * seconds for _, _, seconds, _ in items],
        "y": [row for row, _, _, _ in items],
        "hovertext": [f"{text}: {seconds_in_words(seconds)}" for _, _, seconds, text in items],
        "hoverinfo": "text",
        "marker": {"color": "#ced4da"},
    }


def width_figure(launches: Sequence[LaunchRecord]) -> Json:
    """The rows of each launch, in order, one colour for each block."""
    blocks: dict[str, list[int]] = {}
    for number, launch in enumerate(launches):
        blocks.setdefault(launch.block, []).append(number)
    return {
        "data": [
            {
                "type": "bar",
                "name": block,
                "x": mine,
                "y": [launches[number].rows for number in mine],
                "width": 0.9,
                "customdata": [f"launch{number}" for number in mine],
            }
            for block, mine in blocks.items()
        ],
        "layout": {
            "barmode": "overlay",
            "xaxis": {
                "title": {"text": "launch"},
                "range": [-0.6, max(len(launches), 10) - 0.4],
                "tickformat": "d",
            },
            "yaxis": {"title": {"text": "rows"}, "rangemode": "tozero"},
            "showlegend": True,
            "height": 300,
        },
    }


def _few(launched: Sequence[int]) -> int:
    """Ticks of a scale of launches: whole numbers, and not too many."""
    return min(6, max(launched) - min(launched) + 1)


def rows_figure(rows: Sequence[InstanceRow], numbers: dict[LaunchRecord, int]) -> Json:
    """The rows of one instance above what they needed, coloured by their launch."""
    places = lay_out_rows(rows)
    xs: list[float | None] = []
    ys: list[float | None] = []
    for number, row in enumerate(rows):
        for other in row.needs:
            xs += [places[number].x, places[other].x, None]
            ys += [places[number].y, places[other].y, None]
    launched = [numbers[row.launch] for row in rows]
    edges = {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "hoverinfo": "skip",
        "line": {"color": "#adb5bd", "width": 1},
    }
    nodes = {
        "type": "scatter",
        "mode": "markers",
        "x": [place.x for place in places],
        "y": [place.y for place in places],
        "customdata": [f"launch{number}" for number in launched],
        "text": [f"launch {n}: {row.launch.block}" for n, row in zip(launched, rows, strict=True)],
        "hoverinfo": "text",
        "marker": {
            "size": 13,
            "color": launched,
            "colorscale": SCALE,
            "showscale": True,
            "colorbar": {
                "title": {"text": "launch"},
                "tickformat": "d",
                "nticks": 1 + _few(launched),
            },
            "line": {"width": 1, "color": "#ffffff"},
        },
    }
    return {
        "data": [edges, nodes],
        "layout": {
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
            "showlegend": False,
            "height": 140 + min(320, 40 * round(1 + max(place.y for place in places))),
        },
    }
