"""What the functions that fire nodes share: fetching inputs, handing on outputs, keys of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.ir.graph import Wire
from penstock.plan.arrays import ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.random_keys import mix
from penstock.plan.schedule import Array, Integers
from penstock.plan.slots import SequenceTable

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedContext, LinkedNode
    from penstock.plan.machine import Machine

#: The values of the event that a node fires in; None for a node that was queued.
Arrays = Sequence[Array] | None


def fetch_all(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> list[Array]:
    """The values of all inputs of a node."""
    return [machine.fetch(node, k, rows, arrays) for k in range(len(node.access))]


def emit(machine: Machine, node: LinkedNode, rows: Integers, values: Sequence[Array]) -> None:
    """Let what a node makes arrive."""
    if node.output is not None:
        machine.deliver(node.output, rows, values)


def emit_fresh(
    machine: Machine,
    node: LinkedNode,
    rows: Integers,
    place: ArrayTable | SequenceTable | BoxTable,
    numbers: Integers,
) -> None:
    """Let new arrays or sequences arrive, and then give up the count that they were made with."""
    emit(machine, node, rows, [numbers])
    machine.held.append(lambda: place.add(numbers, -1))


def child_keys(
    machine: Machine, linked: LinkedContext, parents: Integers, count: Integers
) -> Array | int:
    """The random keys of rows of an inner context, by their iteration or element."""
    if not machine.linked.graph.has_random:
        return 0
    assert linked.context.parent is not None
    key = machine.rows[linked.context.parent].key[parents]
    for salt in linked.context.key_path:
        key = mix(key, salt)
    return mix(key, count)


def deliver_inputs(
    machine: Machine, linked: LinkedContext, rows: Integers, values: list[Array]
) -> None:
    """Hand its inputs to new rows of an inner context."""
    value_of: dict[Wire, Array] = dict(zip(linked.context.inputs, values, strict=True))
    for group in linked.inputs:
        machine.deliver(group, rows, [value_of[wire] for wire in group.wires])


def array_place(machine: Machine, wire: Wire) -> ArrayTable:
    """Where the arrays of a wire are."""
    place = machine.place(wire)
    assert isinstance(place, ArrayTable)
    return place
