"""How values move through a graph: from wire to wire, under other names, without being computed.

Control flow, elements and arrays only copy slots. What an array is read from is taken to be any of
the values written to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ir.copies import copies
from penstock.ir.graph import Fork, Graph, Home, Node, Primitive, Wire


def wire_copies(graph: Graph) -> Iterator[tuple[Wire, Wire]]:
    """Each source with the wire that its value may come to under another name."""
    for node in graph.nodes:
        yield from _copies_of(graph, node)


def _copies_of(graph: Graph, node: Node) -> Iterator[tuple[Wire, Wire]]:
    match node.operation:
        case Fork(each=each, elements=elements):
            inner = graph.contexts[each]
            yield from zip(node.inputs[1 : elements + 1], inner.inputs, strict=True)
            yield from zip(inner.outputs, node.outputs, strict=True)
        case Primitive():
            for wire in node.inputs:
                if wire.home is Home.SLOT:
                    for output in node.outputs:
                        if output.home is Home.SLOT:
                            yield wire, output
        case _:
            for sources, targets in copies(graph, node):
                yield from zip(sources, targets, strict=True)
