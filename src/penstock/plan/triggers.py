"""What sets a node off: the groups that it waits for, and its arm.

A group that is certain to be there when a row enters the node's arm is not waited for. A node with
one trigger, from within its arm, runs at once, as part of the event; all others are queued, so that
rows from many events run together.
"""

from __future__ import annotations

from penstock.ir.graph import Block, Call, Context, Enter, Fork, Merge, Node, Read, Switch, Wire
from penstock.plan.groups import Groups
from penstock.plan.linked import Arm, Group, LinkedContext, LinkedNode

#: Operations whose results may come in several events within one firing.
_SCATTERING = (Merge, Call, Enter, Fork, Block, Read)


def set_triggers(linked: LinkedContext, groups: Groups) -> None:
    """Find the triggers of all nodes of a context."""
    makers = {wire: node for node in linked.context.nodes for wire in node.outputs}
    for group in linked.groups:
        group.is_scattered = any(
            wire not in makers or isinstance(makers[wire].operation, _SCATTERING)
            for wire in group.wires
        )
    certain = _certain_groups(linked.context, groups, makers)
    creates = linked.context.kind == "loop" or any(map(_opens, linked.nodes))
    for node in linked.nodes:
        if node.kind == "call":
            linked.arms[node.node.arm].calls.append(node)
            continue
        _set_trigger(linked, node, groups, certain[node.node.arm])
        node.is_expanding = not node.is_inline and (
            node.kind in ("enter", "fork")
            or (creates and node.kind in ("compute", "switch", "pass", "primitive"))
        )


def find_loose_inputs(linked: LinkedContext, groups: Groups) -> None:
    """Mark the inputs that may come only when a row has done all its work.

    An argument that only an untaken branch reads is one. A row that ended before it came could not
    take it any more, and its number may belong to another row by then.
    """
    makers = {wire: node for node in linked.context.nodes for wire in node.outputs}
    awaited = _awaited_groups(linked, 0, groups, makers)
    for group in linked.inputs:
        group.is_loose = group.number not in awaited
    linked.loose = sum(group.is_loose for group in linked.inputs)


def _awaited_groups(
    linked: LinkedContext, arm: int, groups: Groups, makers: dict[Wire, Node]
) -> set[int]:
    """The groups without which a row that enters the arm cannot end, whichever arms it takes."""
    found: set[int] = set()
    for node in linked.nodes:
        if node.node.arm != arm or node.kind == "call":
            continue
        if isinstance(node.node.operation, Switch):
            inner = [_awaited_groups(linked, a, groups, makers) for a in node.node.operation.arms]
            found |= set.intersection(*inner)
        if not node.is_inline:
            for wire in node.node.inputs:
                found |= _before(linked.context, wire, groups, makers)
    return found


def _opens(node: LinkedNode) -> bool:
    return node.kind in ("call", "enter", "fork")


def _certain_groups(context: Context, groups: Groups, makers: dict[Wire, Node]) -> list[set[int]]:
    """For each arm the groups that have arrived when a row enters it."""
    certain: list[set[int]] = [set() for _ in context.arms]
    for node in context.nodes:
        if isinstance(node.operation, Switch):
            before = _before(context, node.inputs[0], groups, makers)
            for arm in node.operation.arms:
                certain[arm] = before
    for arm, parent in enumerate(context.arms):
        if parent is not None:
            certain[arm] = certain[arm] | certain[parent]
    return certain


def _before(context: Context, wire: Wire, groups: Groups, makers: dict[Wire, Node]) -> set[int]:
    """The groups that must have arrived for this wire to be there."""
    found: set[int] = set()
    work = [wire]
    while work:
        item = work.pop()
        if not _is_local(context, item) or groups.of[item].number in found:
            continue
        found.add(groups.of[item].number)
        maker = makers.get(item)
        if maker is not None and not isinstance(maker.operation, Merge | Call):
            work.extend(maker.inputs)
    return found


def _is_local(context: Context, wire: Wire) -> bool:
    return wire.is_of_row and wire.context == context.index


def _set_trigger(
    linked: LinkedContext, node: LinkedNode, groups: Groups, certain: set[int]
) -> None:
    arm = linked.arms[node.node.arm]
    local = [wire for wire in node.node.inputs if _is_local(linked.context, wire)]
    needs = dict.fromkeys(groups.of[wire] for wire in local)
    needed = [group for group in needs if group.number not in certain]
    waits_for_arm = not any(wire.arm == node.node.arm for wire in local)
    node.waits = len(needed) + waits_for_arm
    if node.waits == 1:
        _set_single(arm, node, needed[0] if needed else None)
    else:
        node.counter = len(linked.waits)
        linked.waits.append(node.waits)
        for group in needed:
            group.counted.append(node)
        if waits_for_arm:
            arm.counted.append(node)
    if not node.is_inline:
        arm.todo += 1


def _set_single(arm: Arm, node: LinkedNode, group: Group | None) -> None:
    """A node that waits for one thing: its arm, or a group."""
    can_inline = not node.is_data and node.kind not in ("enter", "fork", "upload")
    if group is None:
        node.is_inline = can_inline
        (arm.inline if can_inline else arm.queued).append(node)
        return
    node.is_inline = can_inline and not group.is_scattered
    node.trigger = group if node.is_inline else None
    (group.inline if node.is_inline else group.queued).append(node)
