"""Ranks the nodes that wait for rows: a block of higher rank waits while one of lower rank can
still feed it.

The rank is the length of the longest path from the entry in the graph of nodes, with the edges that
close loops and recursions left out. Nodes of mutually exclusive arms get equal ranks where their
inputs do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.ir.graph import Call, Enter, Fork, Graph, Merge, Node, Switch, Wire


@dataclass(slots=True)
class _Edges:
    """Which wires a wire is copied from, and which node makes a wire."""

    makers: dict[Wire, Node] = field(default_factory=dict)
    copies: dict[Wire, list[Wire]] = field(default_factory=dict)
    #: The index wires that decide whether an arm runs.
    gates: dict[tuple[int, int], list[Wire]] = field(default_factory=dict)
    #: The call or enter nodes that open a context.
    openers: dict[int, list[Node]] = field(default_factory=dict)


def rank_nodes(graph: Graph) -> dict[Node, int]:
    """The rank of every node of the graph."""
    edges = _collect(graph)
    feeds = {
        node: _feeding_nodes(edges, node) for context in graph.contexts for node in context.nodes
    }
    levels: dict[Node, int] = {}
    for node in feeds:
        _level(node, feeds, levels)
    return levels


def _collect(graph: Graph) -> _Edges:
    edges = _Edges()
    for context in graph.contexts:
        for node in context.nodes:
            match node.operation:
                case Merge():
                    edges.copies[node.outputs[0]] = list(node.inputs)
                    continue
                case Switch(arms=arms):
                    for arm in arms:
                        edges.gates[context.index, arm] = [node.inputs[0]]
                case Call(callee=callee):
                    _copy(edges, graph.contexts[callee].inputs, node.inputs)
                    _copy(edges, node.outputs, graph.contexts[callee].outputs)
                    edges.openers.setdefault(callee, []).append(node)
                    continue
                case Enter(loop=loop, carried=carried):
                    inner = graph.contexts[loop]
                    _copy(edges, inner.inputs, node.inputs[:carried])
                    _copy(edges, inner.inputs, inner.outputs)
                    _copy(edges, node.outputs, inner.exits)
                    edges.openers.setdefault(loop, []).append(node)
                    continue
                case Fork(each=each, elements=elements):
                    inner = graph.contexts[each]
                    _copy(edges, inner.inputs, node.inputs[1 : elements + 1])
                    _copy(edges, node.outputs, inner.outputs)
                    edges.openers.setdefault(each, []).append(node)
                    continue
            edges.makers.update(dict.fromkeys(node.outputs, node))
    return edges


def _copy(edges: _Edges, targets: tuple[Wire, ...], sources: tuple[Wire, ...]) -> None:
    for target, source in zip(targets, sources, strict=True):
        edges.copies.setdefault(target, []).append(source)


def _feeding_nodes(edges: _Edges, node: Node) -> list[Node]:
    """The nodes whose outputs reach this one through copies, or that decide whether it runs."""
    found: dict[Node, None] = {}
    seen: set[Wire] = set()
    work = [*node.inputs, *edges.gates.get((node.context, node.arm), ())]
    work += [wire for opener in edges.openers.get(node.context, ()) for wire in opener.inputs]
    while work:
        wire = work.pop()
        if wire in seen:
            continue
        seen.add(wire)
        if wire in edges.makers:
            found[edges.makers[wire]] = None
        work.extend(edges.copies.get(wire, ()))
    return list(found)


def _level(start: Node, feeds: dict[Node, list[Node]], levels: dict[Node, int]) -> None:
    """Longest path by depth-first search; an edge to a node still on the path closes a cycle."""
    on_path: dict[Node, int] = {start: 0}
    stack = [(start, iter(feeds[start]))] if start not in levels else []
    while stack:
        node, others = stack[-1]
        for other in others:
            if other in levels:
                on_path[node] = max(on_path[node], levels[other] + 1)
            elif other not in on_path:
                on_path[other] = 0
                stack.append((other, iter(feeds[other])))
                break
        else:
            stack.pop()
            levels[node] = on_path.pop(node)
            if stack:
                parent = stack[-1][0]
                on_path[parent] = max(on_path[parent], levels[node] + 1)
