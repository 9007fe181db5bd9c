"""The graph of primitives as a figure: frames and arms as boxes, one colour for each kind."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ir.graph import Block, Call, Enter, Fork, Graph, Node, Primitive
from penstock.passes.partition import device_of
from penstock.profiling.view.details import Json, detail
from penstock.profiling.view.graph_layout import Box, GraphLayout, Mark, lay_out

#: The colour of each kind of primitive; others are grey.
COLOURS = {
    "Compute": "#f4a261",
    "Switch": "#e76f51",
    "Merge": "#e9c46a",
    "Call": "#8e6bbf",
    "Enter": "#5b9f7b",
    "Fork": "#5b9f7b",
    "Read": "#c1121f",
    "frame ends": "#343a40",
}
OTHER = "#8d99ae"

#: Blocks, one colour for each device in turn.
DEVICES = ("#2a6f97", "#b5179e", "#2b9348", "#b08900", "#6a040f", "#3d348b")


#: Marks of a graph from which on only these kinds and blocks have labels; others tell theirs when
#: pointed at.
CROWDED = 30
ALWAYS_LABELLED = frozenset({"Call", "Enter", "Fork", "frame ends"})


def graph_figure(graph: Graph, prefix: str) -> tuple[Json, Json]:
    """The figure, and what to tell about each of its nodes."""
    layout = lay_out(graph)
    details = {
        f"{prefix}{number}": _detail(graph, mark)
        for number, mark in enumerate(layout.marks)
        if mark.node is not None
    }
    figure = {
        "data": [
            _lines(layout, layout.edges, "solid", "#adb5bd"),
            _lines(layout, layout.jumps, "dot", "#b08bd9"),
            *_nodes(graph, layout, prefix),
        ],
        "layout": {
            "shapes": [
                *(_shape(box, "#6c757d", "rgba(233,236,239,0.5)") for box in layout.frames),
                *(_shape(box, "#ced4da", "rgba(255,255,255,0.7)") for box in layout.arms),
            ],
            "annotations": [*map(_title, layout.frames)],
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
            "showlegend": True,
            "height": 560,
        },
    }
    return figure, details


def kind_of(node: Node) -> str:
    """The paper's word for a primitive."""
    operation = node.operation
    return operation.name if isinstance(operation, Primitive) else type(operation).__name__


def _label(graph: Graph, mark: Mark) -> str:
    if mark.node is None:
        return mark.word
    match mark.node.operation:
        case Block(name=name):
            return name.rpartition(":")[2]
        case Call(callee=inner) | Enter(loop=inner) | Fork(each=inner):
            return f"{kind_of(mark.node)} {graph.contexts[inner].name}"
    return kind_of(mark.node)


def _detail(graph: Graph, mark: Mark) -> Json:
    assert mark.node is not None
    context = graph.contexts[mark.context]
    lines = [f"frame: {context.kind} {context.name}, arm {mark.arm}"]
    lines += [f"in: {wire} {wire.type}" for wire in mark.node.inputs]
    lines += [f"out: {wire} {wire.type}" for wire in mark.node.outputs]
    title = kind_of(mark.node)
    if isinstance(mark.node.operation, Block):
        title = f"Block {mark.node.operation.name}"
        lines.insert(1, f"device: {device_of(mark.node)}")
        lines.insert(2, f"torch calls: {len(mark.node.operation.nodes)}")
    return detail(title, lines, mark.node.source or context.source)


def _nodes(graph: Graph, layout: GraphLayout, prefix: str) -> list[Json]:
    """One trace for each kind, so that the legend names them."""
    kinds: dict[str, list[int]] = {}
    for number, kind in enumerate(_kinds(layout.marks)):
        kinds.setdefault(kind, []).append(number)
    blocks = sorted(kind for kind in kinds if kind.startswith("Block"))
    colours = COLOURS | {kind: DEVICES[n % len(DEVICES)] for n, kind in enumerate(blocks)}

    def is_labelled(kind: str) -> bool:
        return len(layout.marks) <= CROWDED or kind in blocks or kind in ALWAYS_LABELLED

    return [
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": kind,
            "x": [layout.marks[n].x for n in mine],
            "y": [layout.marks[n].y for n in mine],
            "text": [_label(graph, layout.marks[n]) if is_labelled(kind) else "" for n in mine],
            "hovertext": [_label(graph, layout.marks[n]) for n in mine],
            "textposition": "middle right",
            "textfont": {"size": 11},
            "customdata": [f"{prefix}{n}" for n in mine],
            "hoverinfo": "text",
            "marker": {
                "size": 16 if kind in blocks else 11,
                "symbol": "square" if kind in blocks else "circle",
                "color": colours.get(kind, OTHER),
                "line": {"width": 1, "color": "#ffffff"},
            },
        }
        for kind, mine in kinds.items()
    ]


def _kinds(marks: Sequence[Mark]) -> list[str]:
    """What the legend says of each mark; of blocks also the device, where there are several."""
    kinds = ["frame ends" if mark.node is None else kind_of(mark.node) for mark in marks]
    devices = {
        number: str(device_of(mark.node))
        for number, mark in enumerate(marks)
        if mark.node is not None and isinstance(mark.node.operation, Block)
    }
    if len(set(devices.values())) > 1:
        for number, device in devices.items():
            kinds[number] = f"Block on {device}"
    return kinds


def _lines(layout: GraphLayout, edges: list[tuple[int, int]], dash: str, colour: str) -> Json:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for source, target in edges:
        start, end = layout.marks[source], layout.marks[target]
        xs += [start.x, end.x, None]
        ys += [start.y, end.y, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "hoverinfo": "skip",
        "showlegend": False,
        "line": {"color": colour, "width": 1.3, "dash": dash},
    }


def _shape(box: Box, line: str, fill: str) -> Json:
    return {
        "type": "rect",
        "x0": box.left,
        "x1": box.right,
        "y0": box.bottom,
        "y1": box.top,
        "line": {"color": line, "width": 1},
        "fillcolor": fill,
        "layer": "below",
    }


def _title(box: Box) -> Json:
    return {
        "x": box.left,
        "y": box.top,
        "text": f"<b>{box.name}</b>",
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "font": {"size": 11},
    }
