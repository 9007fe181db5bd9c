"""A profile as one page of HTML that needs no network: plotly's code and all data are inside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import MissingExtraError, report
from penstock.ir.graph import Block, Graph, Recv, Send
from penstock.profiling.records import CallRecord
from penstock.profiling.view.details import Json
from penstock.profiling.view.graph_figure import graph_figure
from penstock.profiling.view.run_figures import (
    MOST_DRAWN,
    launch_details,
    rows_figure,
    timeline_figure,
    width_figure,
)
from penstock.profiling.words import counted, plural

if TYPE_CHECKING:
    from penstock.profiling.profile import Profile

#: Programs that are drawn, at most.
MOST_PROGRAMS = 8


class Page:
    """Collects the parts of a page."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.launches = profile.launches[:MOST_DRAWN]
        self.figures: dict[str, Json] = {}
        self.details: Json = launch_details(self.launches)
        self.body: list[str] = []
        calls = [call for call in profile.first_calls.values() if call.graph is not None]
        self.programs = calls[:MOST_PROGRAMS]

    def build(self) -> None:
        """Make all parts."""
        self.body += self._head()
        self.body += self._schedule()
        text = escape(self.profile.explain())
        self.body.append(f"<h2>What limited batching</h2><pre id=explanation>{text}</pre>")
        for number, call in enumerate(self.profile.first_calls.values()):
            self.body += self._rows(number, call)
        for number, call in enumerate(self.programs):
            assert call.graph is not None
            self.body += self._program(number, call, call.graph)
        self.body.append(f"<h2>Summary</h2><pre id=summary>{escape(self.profile.summary())}</pre>")

    def _head(self) -> Iterator[str]:
        profile = self.profile
        nodes = sum(len(c.nodes) for call in self.programs for c in _graph(call).contexts)
        frames = sum(len(_graph(call).contexts) for call in self.programs)
        counts = {
            "call": len(profile.calls),
            "instance": sum(call.instances for call in profile.calls),
            "launch": len(profile.launches),
            "row": sum(launch.rows for launch in profile.launches),
            "primitive": nodes,
            "frame": frames,
        }
        names = ", ".join(dict.fromkeys(call.name for call in profile.calls)) or "nothing"
        yield f"<h1>{escape(names)}</h1><div class=counts>"
        for name, count in counts.items():
            number, word = counted(count, name).split()
            yield f'<span><b id="count-{plural(name)}">{number}</b> {word}</span>'
        yield "</div>"

    def _schedule(self) -> Iterator[str]:
        if not self.launches:
            return
        yield "<h2>Schedule</h2>"
        if len(self.profile.launches) > len(self.launches):
            yield f"<p class=note>The first {counted(len(self.launches), 'launch')} are drawn.</p>"
        yield (
            "<p class=note>When each launch ran on its device: the more rows it had, the darker. "
            "Grey is what it had to wait for; building happens once. Click on a launch to see what "
            "it ran on.</p>"
        )
        yield self._figure("timeline", timeline_figure(self.profile, self.launches))
        yield "<p class=note>How many rows each launch had, in order.</p>"
        yield self._figure("widths", width_figure(self.launches))

    def _program(self, number: int, call: CallRecord, graph: Graph) -> Iterator[str]:
        yield f"<h2>Program {escape(call.name)}</h2>"
        yield (
            "<p class=note>The graph of primitives that the program became. A grey box is a frame "
            "(a function or a loop), a white one an arm of a branch; only blocks touch tensors. "
            "Drag to move, scroll to zoom, click on a node to see your source line.</p>"
        )
        figure, details = graph_figure(graph, f"graph{number}-")
        self.details |= details
        yield self._figure(f"graph{number}", figure)
        if len(graph.partition().parts) > 1:
            yield _partition_table(graph)
        if call.program is not None:
            yield f"<pre class=program>{escape(str(call.program))}</pre>"

    def _rows(self, number: int, call: CallRecord) -> Iterator[str]:
        numbers = {launch: place for place, launch in enumerate(self.launches)}
        rows = call.trail.rows_of(0) if call.trail is not None else []
        known = [row for row in rows if row.launch in numbers]
        if len(known) < len(rows) or len(rows) < 2:
            return
        yield f"<h2>Rows of the first instance of {escape(call.name)}</h2>"
        yield (
            f"<p class=note>{counted(len(rows), 'row')}, each above the rows whose results it "
            "needed: for a recursion over a tree, the tree. Nodes of one colour ran in the same "
            "launch, together with rows of other instances.</p>"
        )
        yield self._figure(f"rows{number}", rows_figure(rows, numbers))

    def _figure(self, name: str, figure: Json) -> str:
        self.figures[name] = figure
        return f'<div class=figure id="{name}"></div>'

    def html(self) -> str:
        """The whole page."""
        data = json.dumps({"figures": self.figures, "details": self.details})
        data = data.replace("</", "<\\/")  # no text may end the script early
        title = escape(", ".join(dict.fromkeys(call.name for call in self.profile.calls)))
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f"<title>{title} - penstock</title><style>{_own('page.css')}</style></head><body>",
                f"<main>{''.join(self.body)}</main><div id=panel hidden></div>",
                f"<script>{_plotly()}</script>",
                f'<script type="application/json" id="data">{data}</script>',
                f"<script>{_own('page.js')}</script></body></html>",
            ]
        )


def write_page(profile: Profile, path: str | PathLike[str]) -> None:
    """Write the page of a profile."""
    page = Page(profile)
    page.build()
    Path(path).write_text(page.html(), encoding="utf-8")


def _graph(call: CallRecord) -> Graph:
    assert call.graph is not None
    return call.graph


def _partition_table(graph: Graph) -> str:
    """One line for each device: what it runs, sends and receives."""
    lines = ["<table class=partition><tr><th>device<th>blocks<th>sends<th>receives</tr>"]
    for device, part in graph.partition().parts.items():
        operations = [node.operation for node in part.nodes]
        counts = [
            sum(isinstance(item, kind) for item in operations) for kind in (Block, Send, Recv)
        ]
        cells = "".join(f"<td>{count:,}" for count in counts)
        lines.append(f"<tr><td>{escape(str(device))}{cells}</tr>")
    return f"{''.join(lines)}</table>"


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """The code of the drawing library, which its Python package carries."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError(
            report(
                "save_html: the drawing library is not installed.",
                facts=[("missing", "plotly"), ("extra", "view")],
                todo="Install it: pip install 'penstock[view]'",
            )
        ) from None
    code: str = get_plotlyjs()
    return code
