"""For-each: one row for each element (Fork), results gathered in arrays (Join)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.faults import lengths_differ
from penstock.ir.graph import Fork, Home, Wire
from penstock.plan.arrays import ArrayTable
from penstock.plan.faults import HostOperationError
from penstock.plan.firing import Arrays, array_place, child_keys, deliver_inputs
from penstock.plan.schedule import Array, Integers
from penstock.plan.slots import SequenceTable, ranges

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedContext, LinkedNode
    from penstock.plan.machine import Machine


def fire_fork(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """One row for each element of the sequences."""
    operation = node.node.operation
    assert isinstance(operation, Fork)
    linked = machine.linked.contexts[operation.each]
    inputs = [machine.fetch(node, k, rows, arrays) for k in range(operation.elements + 1)]
    length = sequence_lengths(machine, node.node.inputs[0], inputs[0])
    for wire, numbers in zip(node.node.inputs[1 : len(inputs)], inputs[1:], strict=True):
        _refuse_other_lengths(length, sequence_lengths(machine, wire, numbers))
    _open_arrays(machine, node, rows, length)
    parents = np.repeat(rows, length)
    if not len(parents):
        return
    home = machine.rows[node.context]
    index = ranges(np.zeros(len(rows), np.int64), length)
    np.add.at(home.todo, parents, 1)
    key = child_keys(machine, linked, parents, index)
    instances, depth = home.instance[parents], home.depth[parents]
    new = machine.create(operation.each, parents, 0, instances, depth, index, key)
    wires = node.node.inputs[1 : operation.elements + 1]
    values = [
        _element(machine, wire, np.repeat(value, length), index)
        for wire, value in zip(wires, inputs[1:], strict=True)
    ]
    deliver_inputs(machine, linked, new, values)


def _refuse_other_lengths(length: Integers, other: Integers) -> None:
    clash = np.flatnonzero(other != length)
    if len(clash):
        raise HostOperationError(clash, lengths_differ(length[clash[0]], other[clash[0]]))


def sequence_lengths(machine: Machine, wire: Wire, values: Integers) -> Integers:
    """The lengths of sequences, arrays or tables."""
    if wire.home is Home.HOST:
        return machine.tables.length[values]
    place = machine.place(wire)
    assert isinstance(place, SequenceTable | ArrayTable)
    return place.length[values]


def _element(machine: Machine, wire: Wire, values: Integers, index: Integers) -> Array:
    if wire.home is Home.HOST:
        return machine.tables.read(wire.type.dtype, values, index)  # type: ignore[union-attr]
    place = machine.place(wire)
    assert isinstance(place, SequenceTable)
    return place.base[values] + index


def _open_arrays(machine: Machine, node: LinkedNode, rows: Integers, length: Integers) -> None:
    """Arrays for the results of a for-each; empty ones are complete at once."""
    children = machine.rows[node.context].children
    for position, wire in enumerate(node.node.outputs):
        numbers = array_place(machine, wire).create(length)
        children[node.child + 2 * position][rows] = numbers
        children[node.child + 2 * position + 1][rows] = length
        _complete(machine, node, position, rows[length == 0])


def fire_join(
    machine: Machine, linked: LinkedContext, position: int, rows: Integers, slots: Integers
) -> None:
    """Results of a for-each go into the arrays of the row that forked; full arrays arrive there."""
    node = linked.opener
    assert node is not None
    home = machine.rows[linked.context.index]
    parents = home.parent[rows]
    children = machine.rows[node.context].children
    numbers = children[node.child + 2 * position][parents]
    place = array_place(machine, node.node.outputs[position])
    place.write(numbers, home.count[rows], slots)
    missing = children[node.child + 2 * position + 1]
    np.subtract.at(missing, parents, 1)
    _complete(machine, node, position, np.unique(parents[missing[parents] == 0]))


def _complete(machine: Machine, node: LinkedNode, position: int, rows: Integers) -> None:
    if not len(rows):
        return
    numbers = machine.rows[node.context].children[node.child + 2 * position][rows]
    place = machine.place(node.node.outputs[position])
    machine.moves.append((node.outputs[position], rows, [numbers]))
    machine.held.append(lambda: place.add(numbers, -1))
