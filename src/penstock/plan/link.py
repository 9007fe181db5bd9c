"""Links a graph for the machine: what arrives together, what that sets off, what rows must store.

The steps are in files of their own: `groups` finds what arrives together, `triggers` what sets each
node off, `moves` where values go, `columns` what rows keep. Everything here is static.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.ir.graph import (
    Block,
    Call,
    Compute,
    Context,
    Enter,
    Fork,
    Graph,
    Merge,
    Node,
    Primitive,
    Read,
    Switch,
)
from penstock.plan.columns import lay_out_columns
from penstock.plan.groups import Groups, form_groups
from penstock.plan.host_code import compile_steps
from penstock.plan.linked import Arm, Linked, LinkedContext, LinkedNode
from penstock.plan.moves import connect
from penstock.plan.places import placed_wires
from penstock.plan.triggers import find_loose_inputs, set_triggers
from penstock.plan.trip_counts import find_trip_counts


def link(graph: Graph, ranks: Mapping[Node, int], default_dtype: str = "float32") -> Linked:
    """Link all contexts."""
    linked = Linked(graph, default_dtype)
    for context in graph.contexts:
        arms = [Arm() for _ in context.arms]
        ancestors = list(_ancestors(graph, context))
        linked.contexts.append(LinkedContext(context, arms, ancestors=ancestors))
    groups = form_groups(graph)
    for group in groups.all():
        linked.contexts[group.context].groups.append(group)
    _link_nodes(linked, ranks, groups)
    for made in linked.contexts:
        set_triggers(made, groups)
    for made in linked.contexts:
        connect(linked, made, groups)
        find_loose_inputs(made, groups)
        _set_start(made)
    lay_out_columns(linked, groups)
    linked.placed = placed_wires(linked)
    find_trip_counts(linked)
    return linked


def _ancestors(graph: Graph, context: Context) -> Iterator[int]:
    """The contexts around this one, nearest first."""
    parent = context.parent
    while parent is not None:
        yield parent
        parent = graph.contexts[parent].parent


def _link_nodes(linked: Linked, ranks: Mapping[Node, int], groups: Groups) -> None:
    number = 0
    for context in linked.contexts:
        for node in context.context.nodes:
            if isinstance(node.operation, Merge):
                continue
            kind = type(node.operation).__name__.lower()
            made = LinkedNode(node, number, ranks[node], kind, node.context)
            made.is_in_loop = context.context.kind == "loop"
            number += 1
            context.nodes.append(made)
            _set_operation(linked, context, made)
            if isinstance(node.operation, Fork):
                made.outputs = [groups.of[wire] for wire in node.outputs]
            elif node.outputs and not isinstance(node.operation, Call | Enter):
                made.output = groups.of[node.outputs[0]]


def _set_operation(linked: Linked, context: LinkedContext, made: LinkedNode) -> None:
    """What is particular to each kind of node."""
    node = made.node
    match node.operation:
        case Block():
            made.is_data, made.block = True, len(linked.blocks)
            linked.blocks.append(node)
        case Read():
            made.is_data = True
        case Compute(steps=steps):
            made.function = compile_steps(steps, node.inputs, node.outputs, linked.default_dtype)
        case Call(callee=callee, site=site):
            _take_columns(context, made, 1)
            linked.calls.setdefault(callee, {})[site] = made
        case Enter(loop=inner):
            _take_columns(context, made, 1)
            linked.contexts[inner].opener = made
        case Fork(each=inner):
            _take_columns(context, made, 2 * len(node.outputs))
            linked.contexts[inner].opener = made
        case Switch(arms=arms):
            made.is_loop_switch = made.is_in_loop and arms == (1, 2)
        case Primitive(name="ArrayWrite"):
            made.is_last_use = _is_last_use(linked.graph, context.context, node)


def _take_columns(context: LinkedContext, node: LinkedNode, count: int) -> None:
    node.child = context.children
    context.children += count


def _set_start(context: LinkedContext) -> None:
    if not context.arms[0].is_passive:
        index = context.context.index
        context.start = LinkedNode(context.nodes[0].node, -1 - index, 0, "start", index)
        context.start.is_expanding = True


def _is_last_use(graph: Graph, context: Context, node: Node) -> bool:
    """Whether every other reader of the array is in an arm that excludes this one."""
    wire = node.inputs[0]
    if wire.context != context.index or wire.input is not None:
        return False
    readers = [
        (other.context, other.arm)
        for inner in graph.contexts
        for other in inner.nodes
        if other is not node and wire in other.inputs
    ]
    readers += [(context.index, 0) for w in (*context.outputs, *context.exits) if w is wire]
    return all(
        where == context.index and _exclude(context, node.arm, arm) for where, arm in readers
    )


def _exclude(context: Context, first: int, second: int) -> bool:
    """Whether no row is in both arms."""
    return first not in _around(context, second) and second not in _around(context, first)


def _around(context: Context, arm: int | None) -> Iterator[int]:
    while arm is not None:
        yield arm
        arm = context.arms[arm]
