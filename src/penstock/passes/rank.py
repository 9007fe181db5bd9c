"""Ranks the nodes that wait for rows: a block of higher rank waits while one of lower rank can feed
it.

What a loop or a recursion computes over and over has lower ranks than all that follows it. Inside,
the rank is the longest path once the edges that lead to the next iteration or to the next call are
left out, the outermost loop's first; so an inner loop is below what follows it in the outer body.
Only blocks and read-backs count: mutually exclusive blocks have equal ranks where their inputs do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.ir.graph import Block, Call, Enter, Fork, Graph, Node, Read, Switch, Wire
from penstock.passes.components import find_components


class ArmOf(NamedTuple):
    """The entering of an arm by rows of a context."""

    context: int
    arm: int


#: What can come before something else.
Vertex = Node | Wire | ArmOf

#: How early an edge that closes a cycle is left out: outer contexts first, calls before returns.
Closing = tuple[int, int, int]


class Edge(NamedTuple):
    """One thing comes before another, at the latest in the next iteration or call if it is closing."""

    source: Vertex
    target: Vertex
    closing: Closing | None = None


def rank_nodes(graph: Graph) -> dict[Node, int]:
    """The rank of every node of the graph."""
    edges = list(_Edges(graph).collect())
    nodes = [node for context in graph.contexts for node in context.nodes]
    ends = [end for edge in edges for end in (edge.source, edge.target)]
    ranks: dict[Vertex, int] = {}
    _assign(dict.fromkeys([*nodes, *ends]), edges, 0, ranks)
    return {node: ranks[node] for node in nodes}


@dataclass(slots=True)
class _Edges:
    """Finds what comes before what."""

    graph: Graph
    #: How deep each context is nested in loops and calls; contexts that open each other are level.
    levels: dict[int, int] = field(default_factory=dict)
    #: A number for each set of contexts that open each other.
    circles: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        opened: dict[int, list[int]] = {context.index: [] for context in self.graph.contexts}
        for context in self.graph.contexts:
            opened[context.index] += [i for n in context.nodes for i in _opened_by(n)]
        for number, circle in enumerate(find_components(opened, opened)):
            self.circles.update(dict.fromkeys(circle, number))
            level = max((self.levels.get(index, 0) for index in circle), default=0)
            for index in circle:
                self.levels[index] = level
                for inner in opened[index]:
                    if inner not in circle:
                        self.levels[inner] = max(self.levels.get(inner, 0), level + 1)

    def collect(self) -> Iterator[Edge]:
        """All edges of the graph."""
        for context in self.graph.contexts:
            for arm, parent in enumerate(context.arms):
                if parent is not None:
                    yield Edge(ArmOf(context.index, parent), ArmOf(context.index, arm))
            for node in context.nodes:
                yield Edge(ArmOf(node.context, node.arm), node)
                yield from self._around(node)

    def _around(self, node: Node) -> Iterator[Edge]:
        match node.operation:
            case Call():
                yield from self._call(node, node.operation)
            case Enter():
                yield from self._loop(node, node.operation)
            case Fork(each=each, elements=elements):
                inner = self.graph.contexts[each]
                yield from _each_to(node.inputs, node)
                yield Edge(node, ArmOf(each, 0))
                yield from _copies(node.inputs[1 : elements + 1], inner.inputs)
                yield from _copies(inner.outputs, node.outputs)
            case Switch(arms=arms):
                yield from _each_to(node.inputs, node)
                yield from (Edge(node, ArmOf(node.context, arm)) for arm in arms)
            case _:
                yield from _each_to(node.inputs, node)
                yield from (Edge(node, wire) for wire in node.outputs)

    def _call(self, node: Node, call: Call) -> Iterator[Edge]:
        callee = self.graph.contexts[call.callee]
        is_recursive = self.circles[node.context] == self.circles[call.callee]
        down = self._closing(call.callee, 0) if is_recursive else None
        back = self._closing(call.callee, 1) if is_recursive else None
        yield Edge(node, ArmOf(call.callee, 0), down)
        yield from _copies(node.inputs, callee.inputs, down)
        yield from _copies(callee.outputs, node.outputs, back)

    def _loop(self, node: Node, enter: Enter) -> Iterator[Edge]:
        inner = self.graph.contexts[enter.loop]
        yield from _each_to(node.inputs, node)
        yield Edge(node, ArmOf(enter.loop, 0))
        yield from _copies(node.inputs[: enter.carried], inner.inputs)
        following = self._closing(enter.loop, 0)
        yield from _copies(inner.outputs, inner.inputs, following)
        yield Edge(ArmOf(enter.loop, 2), ArmOf(enter.loop, 0), following)
        yield from _copies(inner.exits, node.outputs)

    def _closing(self, context: int, priority: int) -> Closing:
        depth, parent = 0, self.graph.contexts[context].parent
        while parent is not None:
            depth, parent = depth + 1, self.graph.contexts[parent].parent
        return self.levels[context], depth, priority


def _opened_by(node: Node) -> tuple[int, ...]:
    match node.operation:
        case Call(callee=inner) | Enter(loop=inner) | Fork(each=inner):
            return (inner,)
        case _:
            return ()


def _each_to(wires: Iterable[Wire], node: Node) -> Iterator[Edge]:
    return (Edge(wire, node) for wire in wires)


def _copies(
    sources: Iterable[Wire], targets: Iterable[Wire], closing: Closing | None = None
) -> Iterator[Edge]:
    pairs = zip(sources, targets, strict=True)
    return (Edge(source, target, closing) for source, target in pairs)


def _assign(
    vertices: Iterable[Vertex], edges: list[Edge], base: int, ranks: dict[Vertex, int]
) -> int:
    """Ranks from `base` on for vertices and the edges among them; the first rank that is free."""
    successors: dict[Vertex, list[Vertex]] = {}
    for edge in edges:
        successors.setdefault(edge.source, []).append(edge.target)
    last = base
    starts: dict[Vertex, int] = {}
    for component in find_components(vertices, successors):
        start = max((starts.get(vertex, base) for vertex in component), default=base)
        end = _assign_component(component, edges, start, ranks)
        for vertex in component:
            for other in successors.get(vertex, ()):
                starts[other] = max(starts.get(other, base), end)
        last = max(last, end)
    return last


def _assign_component(
    component: list[Vertex], edges: list[Edge], start: int, ranks: dict[Vertex, int]
) -> int:
    """Ranks for what hangs together; a cycle is opened where its outermost loop or call closes it."""
    if len(component) == 1:
        ranks[component[0]] = start
        return start + _is_waiting(component[0])
    members = set(component)
    inner = [edge for edge in edges if edge.source in members and edge.target in members]
    outermost = min(edge.closing for edge in inner if edge.closing is not None)
    rest = [edge for edge in inner if edge.closing != outermost]
    return _assign(component, rest, start, ranks)


def _is_waiting(vertex: Vertex) -> bool:
    """Whether it is a node that waits in a queue until its rank is the lowest."""
    return isinstance(vertex, Node) and isinstance(vertex.operation, Block | Read)
