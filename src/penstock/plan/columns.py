"""Which wires rows must keep, in which columns, and how each node finds its inputs."""

from __future__ import annotations

from penstock.ir.graph import Home, Wire
from penstock.ir.types import TensorType
from penstock.plan.groups import Groups
from penstock.plan.linked import Access, Linked, LinkedContext, LinkedNode


def lay_out_columns(linked: Linked, groups: Groups) -> None:
    """Give columns to wires that are read after the event that brought them."""
    readers = [(c, n) for c in linked.contexts for n in c.nodes if n.kind != "call"]
    stored = dict.fromkeys(
        wire
        for _, node in readers
        for wire in node.node.inputs
        if wire.is_of_row and not _is_brought(node, wire, groups)
    )
    for wire in stored:
        _add_column(linked, wire, groups)
    for context, node in readers:
        node.access = [_access(linked, context, node, w, groups) for w in node.node.inputs]


def _is_brought(node: LinkedNode, wire: Wire, groups: Groups) -> bool:
    """Whether the event that sets the node off brings the value."""
    return node.trigger is not None and groups.of[wire] is node.trigger


def _access(
    linked: Linked, context: LinkedContext, node: LinkedNode, wire: Wire, groups: Groups
) -> Access:
    made = Access(wire.home is Home.HOST, input=wire.input)
    if not wire.is_of_row:
        return made
    if _is_brought(node, wire, groups):
        made.field = groups.field_of[wire]
        return made
    made.column = linked.columns[wire]
    if wire.context != context.context.index:
        made.above = tuple(context.ancestors[: context.ancestors.index(wire.context) + 1])
    return made


def _add_column(linked: Linked, wire: Wire, groups: Groups) -> None:
    context = linked.contexts[wire.context]
    group, position = groups.of[wire], groups.field_of[wire]
    if wire.home is Home.HOST:
        assert isinstance(wire.type, TensorType)
        column = len(context.host_wires)
        context.host_wires.append(wire)
        context.host_dtypes.append("int64" if wire.type.is_sequence else wire.type.dtype)
        group.host_stores.append((position, column))
    else:
        column = len(context.slot_wires)
        context.slot_wires.append(wire)
        group.slot_stores.append((position, column))
    linked.columns[wire] = column
