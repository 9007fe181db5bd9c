"""Where values go when they arrive: through merges, to callees and back, to the next iteration.

A move takes some fields of a group to the group that they become, in the order of its wires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.ir.graph import Call, Enter, Graph, Merge, Node, Wire
from penstock.plan.groups import Groups
from penstock.plan.linked import Group, Linked, LinkedContext


def connect(linked: Linked, context: LinkedContext, groups: Groups) -> None:
    """Find all moves that start in a context or come back to it."""
    graph = linked.graph
    for node in context.context.nodes:
        match node.operation:
            case Merge():
                _connect_merge(graph, node, groups)
            case Call(callee=callee, site=site):
                child = linked.calls[callee][site].child
                inner = graph.contexts[callee]
                for source, target, fields in _moves(node.inputs, inner.inputs, groups):
                    source.arguments.append((child, target, fields))
                for source, target, fields in _moves(inner.outputs, node.outputs, groups):
                    source.returns[site] = (target, fields)
            case Enter(loop=loop):
                for source, target, fields in _moves(
                    graph.contexts[loop].exits, node.outputs, groups
                ):
                    source.exits.append((target, fields))
    context.inputs = list(dict.fromkeys(groups.of[wire] for wire in context.context.inputs))
    _connect_outputs(context, groups)


def _connect_outputs(linked: LinkedContext, groups: Groups) -> None:
    context = linked.context
    if context.kind == "loop":
        for source, target, fields in _moves(context.outputs, context.inputs, groups):
            source.next_values.append((target, fields))
        return
    for position, wire in enumerate(context.outputs):
        place = (position, groups.field_of[wire])
        if context.kind == "each":
            groups.of[wire].joins.append(place)
        elif context.index == 0:
            groups.of[wire].results.append(place)


def _connect_merge(graph: Graph, node: Node, groups: Groups) -> None:
    """The moves of all merges whose results arrive together, at the first of them."""
    target = groups.of[node.outputs[0]]
    if node.outputs[0] is not target.wires[0]:
        return
    makers = {wire: n for n in graph.contexts[node.context].nodes for wire in n.outputs}
    merges = [makers[wire] for wire in target.wires]
    for arm, wire in enumerate(node.inputs):
        fields = tuple(groups.field_of[merge.inputs[arm]] for merge in merges)
        groups.of[wire].merges.append((target, fields))


def _moves(
    sources: Sequence[Wire], targets: Sequence[Wire], groups: Groups
) -> Iterator[tuple[Group, Group, tuple[int, ...]]]:
    """Source group, target group, and fields of the source in the order of the target's wires."""
    source_of = dict(zip(targets, sources, strict=True))
    for target in dict.fromkeys(groups.of[wire] for wire in targets):
        fields = tuple(groups.field_of[source_of[wire]] for wire in target.wires)
        yield groups.of[source_of[target.wires[0]]], target, fields
