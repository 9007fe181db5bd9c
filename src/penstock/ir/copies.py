"""Which nodes of a graph hand values on as they are, from which wires to which."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ir.graph import Call, Enter, Graph, Merge, Node, Pass, Wire


def copies(graph: Graph, node: Node) -> Iterator[tuple[tuple[Wire, ...], tuple[Wire, ...]]]:
    """What a node copies, home and type included: sources and targets, one by one."""
    match node.operation:
        case Pass():
            yield node.inputs, node.outputs
        case Merge():
            yield from (((wire,), node.outputs) for wire in node.inputs)
        case Call(callee=callee):
            yield node.inputs, graph.contexts[callee].inputs
            yield graph.contexts[callee].outputs, node.outputs
        case Enter(loop=loop, carried=carried):
            inner = graph.contexts[loop]
            yield node.inputs[:carried], inner.inputs
            yield inner.outputs, inner.inputs
            yield inner.exits, node.outputs
