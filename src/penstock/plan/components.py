"""Strongly connected components of a directed graph (Tarjan 1972), without recursion."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


def find_components(
    vertices: Iterable[Vertex], successors: Mapping[Vertex, Sequence[Vertex]]
) -> list[list[Vertex]]:
    """The components, each before those it leads to. Successors outside `vertices` do not count."""
    search = _Search(dict.fromkeys(vertices), successors)
    for vertex in search.vertices:
        if vertex not in search.order:
            search.run(vertex)
    return search.found[::-1]


@dataclass(slots=True)
class _Search(Generic[Vertex]):
    """One depth-first search over a graph."""

    vertices: dict[Vertex, None]
    successors: Mapping[Vertex, Sequence[Vertex]]
    #: When each vertex was first seen.
    order: dict[Vertex, int] = field(default_factory=dict)
    #: The earliest vertex, not yet in a component, that each vertex is known to reach.
    low: dict[Vertex, int] = field(default_factory=dict)
    #: Vertices that are in no component yet, as they were seen.
    open: dict[Vertex, None] = field(default_factory=dict)
    found: list[list[Vertex]] = field(default_factory=list)

    def run(self, start: Vertex) -> None:
        """Find the components of all that can be reached from a vertex."""
        path = [(start, self._enter(start))]
        while path:
            vertex, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                self._leave(vertex)
                if path:
                    above = path[-1][0]
                    self.low[above] = min(self.low[above], self.low[vertex])
            elif following not in self.order:
                path.append((following, self._enter(following)))
            elif following in self.open:
                self.low[vertex] = min(self.low[vertex], self.order[following])

    def _enter(self, vertex: Vertex) -> Iterator[Vertex]:
        self.order[vertex] = self.low[vertex] = len(self.order)
        self.open[vertex] = None
        return (other for other in self.successors.get(vertex, ()) if other in self.vertices)

    def _leave(self, vertex: Vertex) -> None:
        if self.low[vertex] < self.order[vertex]:
            return
        component: list[Vertex] = []
        while not component or component[-1] != vertex:
            component.append(self.open.popitem()[0])
        self.found.append(component)
