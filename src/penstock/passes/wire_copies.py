"""How values move through a graph: from wire to wire, under other names, without being computed.

Control flow, elements and arrays only copy slots. What an array is read from is taken to be any of
the values written to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ir.graph import (
    Block,
    Call,
    Compute,
    Elsewhere,
    Enter,
    Fork,
    Graph,
    Home,
    Key,
    Merge,
    Node,
    Pass,
    Primitive,
    Read,
    Recv,
    Send,
    Switch,
    Upload,
    Wire,
)


def wire_copies(graph: Graph) -> Iterator[tuple[Wire, Wire]]:
    """Each source with the wire that its value may come to under another name."""
    for context in graph.contexts:
        for node in context.nodes:
            yield from _copies_of(graph, node)


def _copies_of(graph: Graph, node: Node) -> Iterator[tuple[Wire, Wire]]:
    match node.operation:
        case (
            Block()
            | Compute()
            | Read()
            | Upload()
            | Switch()
            | Key()
            | Send()
            | Recv()
            | Elsewhere()
        ):
            return
        case Pass():
            yield from zip(node.inputs, node.outputs, strict=True)
        case Merge():
            yield from ((source, node.outputs[0]) for source in node.inputs)
        case Call(callee=callee):
            inner = graph.contexts[callee]
            yield from zip(node.inputs, inner.inputs, strict=True)
            yield from zip(inner.outputs, node.outputs, strict=True)
        case Enter(loop=loop, carried=carried):
            inner = graph.contexts[loop]
            yield from zip(node.inputs[:carried], inner.inputs, strict=True)
            yield from zip(inner.outputs, inner.inputs, strict=True)
            yield from zip(inner.exits, node.outputs, strict=True)
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
