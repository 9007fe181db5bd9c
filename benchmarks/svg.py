"""The few shapes that the plots are made of, as SVG text, in colours for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

#: From the first part of a bar on; readable on either background.
COLOURS = ("#4477aa", "#ccbb44", "#ee6677", "#228833", "#aa3377", "#66ccee")

STYLE = """\
<style>
  .paper { fill: #ffffff } text { fill: #24292f } .quiet { fill: #57606a }
  .axis { stroke: #afb8c1 } .grid { stroke: #eaeef2 } .mark { stroke: #cf222e }
  .warn { fill: #cf222e } .whisker { stroke: #24292f }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #9198a1 }
    .axis { stroke: #6e7681 } .grid { stroke: #21262d } .mark { stroke: #ff7b72 }
    .warn { fill: #ff7b72 } .whisker { stroke: #e6edf3 }
  }
</style>"""


def page(width: float, height: float, pieces: list[str]) -> str:
    """The text of a file."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="11">'
    )
    paper = f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>'
    return "\n".join([opening, STYLE, paper, *pieces, "</svg>"]) + "\n"


def box(left: float, top: float, width: float, fill: str, height: float = 10) -> str:
    """A bar."""
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}"/>'


def line(start: tuple[float, float], end: tuple[float, float], kind: str, dashes: str = "") -> str:
    """A line of a kind that the style knows."""
    place = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line class="{kind}" {place}{dashed}/>'


def polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    """Lines from point to point."""
    places = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>'


def dot(point: tuple[float, float], colour: str) -> str:
    """A measured point."""
    return f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="3.5" fill="{colour}"/>'


def words(left: float, bottom: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    """Text; `kind` is a class of the style, or `bold`."""
    weight = ' font-weight="bold"' if kind == "bold" else ""
    place = f'x="{left:.1f}" y="{bottom:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}"{weight}>{escape(text)}</text>'
