"""Places the primitives of a graph: one frame for each context, one column for each of its arms.

Inside an arm a node is below everything that it needs. Frames lie side by side, in the order of the
graph. What has no node in the graph is a mark of its own: the parameters of a frame, and what
leaves it (return, exit, next_iteration, join).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.ir.graph import Call, Context, Enter, Fork, Graph, Node, Switch, Wire
from penstock.ir.graph_printer import leaving

#: The room of a node, and between frames.
STEP, GAP = 1.0, 1.0


@dataclass(slots=True, eq=False)
class Mark:
    """One thing in the picture."""

    #: The primitive; None for parameters and what leaves a frame.
    node: Node | None
    #: What it is called where it is no primitive.
    word: str
    context: int
    arm: int
    inputs: tuple[Wire, ...]
    #: What it makes: the results of a node, the parameters of a frame.
    outputs: tuple[Wire, ...] = ()
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Box:
    """A frame or an arm, with its corners."""

    name: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(slots=True)
class GraphLayout:
    """Where everything is."""

    marks: list[Mark] = field(default_factory=list)
    #: From what makes a value to what needs it, by position in `marks`.
    edges: list[tuple[int, int]] = field(default_factory=list)
    #: Into a frame, and from one iteration to the next.
    jumps: list[tuple[int, int]] = field(default_factory=list)
    frames: list[Box] = field(default_factory=list)
    arms: list[Box] = field(default_factory=list)


def lay_out(graph: Graph) -> GraphLayout:
    """Place all primitives of a graph."""
    layout = GraphLayout()
    parameters: dict[int, int] = {}
    left = 0.0
    for context in graph.contexts:
        marks = list(_marks(context))
        parameters[context.index] = len(layout.marks)
        left = _place(layout, context, marks, left) + GAP
        layout.marks += marks
    _connect(layout)
    _jump(layout, parameters)
    return layout


def _marks(context: Context) -> Iterator[Mark]:
    """Parameters, then the nodes, then what leaves the frame."""
    yield Mark(None, "parameters", context.index, 0, (), context.inputs)
    for node in context.nodes:
        yield Mark(node, "", context.index, node.arm, node.inputs, node.outputs)
    for arm in range(len(context.arms)):
        for word, wires in leaving(context, arm):
            yield Mark(None, word, context.index, arm, wires)


def _place(layout: GraphLayout, context: Context, marks: list[Mark], left: float) -> float:
    """Give the marks of a context their places; the right end of its frame."""
    levels = _levels(context, marks)
    start = left
    for arm in range(len(context.arms)):
        mine = [number for number, mark in enumerate(marks) if mark.arm == arm]
        if not mine:
            continue
        used: dict[int, int] = {}
        for number in mine:
            position = used.get(levels[number], 0)
            used[levels[number]] = position + 1
            marks[number].x = left + position * STEP
            marks[number].y = -float(levels[number])
        width = max(used.values()) * STEP
        if arm:
            layout.arms.append(_box(f"arm {arm}", [marks[n] for n in mine], left, width))
        left += width
    name = f"{context.kind} {context.name}"
    box = _box(name, marks, start, left - start)
    layout.frames.append(Box(name, box.left - 0.1, box.top + 0.35, box.right + 0.1, box.bottom))
    return left


def _box(name: str, marks: list[Mark], left: float, width: float) -> Box:
    top, bottom = max(mark.y for mark in marks), min(mark.y for mark in marks)
    return Box(name, left - 0.45, top + 0.4, left + width - 0.55, bottom - 0.4)


def _levels(context: Context, marks: list[Mark]) -> list[int]:
    """How far below the parameters each mark is: lower than what it needs, and than its switch."""
    made: dict[Wire, int] = {}
    opened: dict[int, int] = {}
    levels: list[int] = []
    for number, mark in enumerate(marks):
        above = [made[wire] for wire in mark.inputs if wire in made]
        above += [opened[mark.arm]] if mark.arm in opened else []
        level = 1 + max(above, default=0) if number else 0
        levels.append(level)
        made.update(dict.fromkeys(mark.outputs, level))
        if mark.node is not None and isinstance(mark.node.operation, Switch):
            opened.update(dict.fromkeys(mark.node.operation.arms, level))
    return levels


def _connect(layout: GraphLayout) -> None:
    """Edges from nodes to those who need what they make, and from switches into their arms."""
    makers: dict[Wire, int] = {}
    opened: dict[tuple[int, int], int] = {}
    for number, mark in enumerate(layout.marks):
        needed: Iterable[int] = (makers[wire] for wire in mark.inputs if wire in makers)
        sources = dict.fromkeys(needed)
        switch = opened.get((mark.context, mark.arm))
        if switch is not None and all(layout.marks[n].arm != mark.arm for n in sources):
            sources[switch] = None
        layout.edges += ((source, number) for source in sources)
        makers.update(dict.fromkeys(mark.outputs, number))
        if mark.node is not None and isinstance(mark.node.operation, Switch):
            opened.update({(mark.context, arm): number for arm in mark.node.operation.arms})


def _jump(layout: GraphLayout, parameters: dict[int, int]) -> None:
    for number, mark in enumerate(layout.marks):
        match mark.node.operation if mark.node is not None else None:
            case Call(callee=inner) | Enter(loop=inner) | Fork(each=inner):
                layout.jumps.append((number, parameters[inner]))
        if mark.word == "next_iteration":
            layout.jumps.append((number, parameters[mark.context]))
