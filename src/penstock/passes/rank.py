"""Ranks the nodes that wait for rows: of what is ready, the machine launches the lowest rank first.

A block waits while one of lower rank can still feed it. What a loop or a recursion computes over
and over is below all that follows it. Inside a cycle the edges that lead to the next iteration or
to the next call of the outermost loop or recursion are left out; inner cycles come first, so that
they drain before the outer body goes on, and then the longest path counts. Only blocks and
read-backs count, so mutually exclusive blocks have equal ranks where their inputs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from penstock.ir.graph import Block, Call, Enter, Fork, Graph, Node, Read, Switch, Wire
from penstock.plan.components import find_components


class ArmOf(NamedTuple):
    """The entering of an arm by rows of a context."""

    context: int
    arm: int


#: What can come before something else.
Vertex = Node | Wire | ArmOf

#: How early an edge that closes a cycle is left out: outer contexts first, calls before returns.
Closing = tuple[int, int, int]


class Edge(NamedTuple):
    """One thing comes before another; if it is closing, in the next iteration or call."""

    source: Vertex
    target: Vertex
    closing: Closing | None = None


def rank_nodes(graph: Graph) -> dict[Node, int]:
    """The rank of every node of the graph."""
    edges = list(_Edges(graph).collect())
    ends = [end for edge in edges for end in (edge.source, edge.target)]
    walk = _Walk(dict.fromkeys([*graph.nodes, *ends]), edges, {})
    walk.along(0, walk.rank)
    return {node: walk.ranks[node] for node in graph.nodes}


@dataclass(slots=True)
class _Edges:
    """Finds what comes before what."""

    graph: Graph
    #: How deep each context is nested in loops and calls; contexts that open each other are level.
    levels: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        opened: dict[int, list[int]] = {context.index: [] for context in self.graph.contexts}
        for context in self.graph.contexts:
            opened[context.index] += [i for n in context.nodes for i in _opened_by(n)]
        for circle in find_components(opened, opened):
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
        # also where nothing is recursive: one call may take what another call of the same function
        # returns, and the edges do not tell calls apart
        callee = self.graph.contexts[call.callee]
        down, back = self._closing(call.callee, 0), self._closing(call.callee, 1)
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


@dataclass(slots=True)
class _Walk:
    """Walks over vertices in their order, what hangs together at once."""

    vertices: InitVar[Iterable[Vertex]]
    edges: list[Edge]
    ranks: dict[Vertex, int]
    successors: dict[Vertex, list[Vertex]] = field(default_factory=dict)
    order: list[list[Vertex]] = field(default_factory=list)

    def __post_init__(self, vertices: Iterable[Vertex]) -> None:
        for edge in self.edges:
            self.successors.setdefault(edge.source, []).append(edge.target)
        self.order = find_components(vertices, self.successors)

    def along(self, base: int, visit: Callable[[list[Vertex], int], int]) -> int:
        """Visit each component with the last end of those before it; `visit` returns its end."""
        starts: dict[Vertex, int] = {}
        last = base
        for component in self.order:
            end = visit(component, max(starts.get(vertex, base) for vertex in component))
            for vertex in component:
                for other in self.successors.get(vertex, ()):
                    starts[other] = max(starts.get(other, base), end)
            last = max(last, end)
        return last

    def rank(self, component: list[Vertex], start: int) -> int:
        """Ranks for one component."""
        return self.cycle(component, start) if len(component) > 1 else self.single(component, start)

    def single(self, component: list[Vertex], start: int) -> int:
        """The rank of a vertex that no cycle goes through."""
        if len(component) > 1:
            return start
        self.ranks[component[0]] = start
        return start + _is_waiting(component[0])

    def cycle(self, component: list[Vertex], start: int) -> int:
        """Ranks for a cycle, opened where its outermost loop or recursion closes it.

        Cycles inside have the lowest ranks: they drain before anything starts the next iteration.
        """
        if len(component) == 1:
            return start
        members = set(component)
        inner = [edge for edge in self.edges if edge.source in members and edge.target in members]
        outermost = min(edge.closing for edge in inner if edge.closing is not None)
        rest = [edge for edge in inner if edge.closing != outermost]
        walk = _Walk(component, rest, self.ranks)
        return walk.along(walk.along(start, walk.cycle), walk.single)


def _is_waiting(vertex: Vertex) -> bool:
    """Whether it is a node that waits in a queue until its rank is the lowest."""
    return isinstance(vertex, Node) and isinstance(vertex.operation, Block | Read)
