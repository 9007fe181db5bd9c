"""What each primitive does when it fires: one function per kind of node, in one table.

A firing reads the columns of its rows, moves integers, and delivers what it makes. Only blocks,
uploads and reads make instructions; blocks are in `launches`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.faults import (
    array_index_out_of_range,
    branch_out_of_range,
    nan_predicate,
    negative_size,
    never_written,
    too_deep,
)
from penstock.ir.graph import Call, Compute, Enter, Fork, Home, Key, Primitive, Switch, Wire
from penstock.plan.arrays import UNWRITTEN, ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.faults import HostOperationError
from penstock.plan.host_kernels import count_from_start
from penstock.plan.launches import fire_block, slots_of
from penstock.plan.random_keys import mix
from penstock.plan.schedule import Array, Copy, Integers, Span, Store, pick
from penstock.plan.slots import SequenceTable, SlotSpace, ranges

if TYPE_CHECKING:
    from penstock.plan.link import LinkedContext, LinkedNode
    from penstock.plan.machine import Machine

Arrays = Sequence[Array] | None


def _inputs(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> list[Array]:
    return [machine.fetch(node, k, rows, arrays) for k in range(len(node.access))]


def _emit(machine: Machine, node: LinkedNode, rows: Integers, values: Sequence[Array]) -> None:
    if node.output is not None:
        machine.deliver(node.output, rows, values)


def fire_compute(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Host operations."""
    assert isinstance(node.node.operation, Compute)
    assert node.function is not None
    values = _inputs(machine, node, rows, arrays)
    _emit(machine, node, rows, node.function(len(rows), machine.tables, *values))


def fire_pass(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Outer values enter an arm."""
    _emit(machine, node, rows, _inputs(machine, node, rows, arrays))


def fire_switch(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Rows go to the arm that their index chooses."""
    operation = node.node.operation
    assert isinstance(operation, Switch)
    index = machine.fetch(node, 0, rows, arrays)
    if index.dtype.kind == "f" and np.isnan(index).any():
        name = "while_loop: what cond_fn returns" if node.is_loop_switch else "cond: pred"
        raise HostOperationError(np.flatnonzero(np.isnan(index)), nan_predicate(name))
    if operation.is_cond:
        taken = index != 0
        if node.is_loop_switch:
            _switch_loop(machine, node, rows, taken)
            return
    else:
        outside = np.flatnonzero((index < 0) | (index >= len(operation.arms)))
        if len(outside):
            fault = branch_out_of_range(index[outside[0]], len(operation.arms))
            raise HostOperationError(outside, fault)
        taken = index
    machine.switch(node, rows, taken)


def _switch_loop(machine: Machine, node: LinkedNode, rows: Integers, taken: Array) -> None:
    """Rows whose predicate holds get a successor, unless their loop has run often enough."""
    linked = machine.linked.contexts[node.context]
    home = machine.rows[node.context]
    most = linked.context.maximum_iterations
    if most is not None:
        taken = taken & (home.count[rows] < most)
    machine.activate(node.context, linked.arms[1], rows[~taken])
    going = rows[taken]
    if linked.context.parallel_iterations is not None:
        going = _hold_back(machine, linked, going)
    if len(going):
        _go_on(machine, linked, going)


#: In the column `site` of a loop's rows: the body of this iteration has started.
RUNNING = 1


def _go_on(machine: Machine, linked: LinkedContext, rows: Integers) -> None:
    """Start the bodies of iterations, with a successor for each."""
    context = linked.context
    home = machine.rows[context.index]
    parents = home.parent[rows]
    iteration = home.count[rows] + 1
    key = _child_keys(machine, linked, parents, iteration)
    assert context.parent is not None
    np.add.at(machine.rows[context.parent].todo, parents, 1)
    instances, depth = home.instance[rows], home.depth[rows]
    new = machine.create(context.index, parents, 0, instances, depth, iteration, key)
    home.children[-1][rows] = new
    home.site[rows] = RUNNING
    machine.activate(context.index, linked.arms[2], rows)


def _in_flight(machine: Machine, linked: LinkedContext) -> Integers:
    """How many iterations of each loop are running, by the row that entered it."""
    assert linked.context.parent is not None
    assert linked.opener is not None
    running: Integers = machine.rows[linked.context.parent].children[linked.opener.child]
    return running


def _hold_back(machine: Machine, linked: LinkedContext, rows: Integers) -> Integers:
    """The rows that may start their bodies; the others wait for older iterations to end."""
    home = machine.rows[linked.context.index]
    running = _in_flight(machine, linked)
    parents = home.parent[rows]
    most = linked.context.parallel_iterations
    assert most is not None
    free = running[parents] < most
    held = rows[~free]
    if len(held):
        home.todo[held] += 1
        machine.waiting[linked.context.index].append(held)
    running[parents[free]] += 1
    return rows[free]


def resume_iterations(machine: Machine, context: int, parents: Integers) -> list[Integers]:
    """Iterations of these loops have ended: start those that waited for them, and say which."""
    linked = machine.linked.contexts[context]
    np.subtract.at(_in_flight(machine, linked), parents, 1)
    waiting, machine.waiting[context] = machine.waiting[context], []
    resumed = []
    for rows in waiting:
        machine.rows[context].todo[rows] -= 1
        going = _hold_back(machine, linked, rows)
        if len(going):
            _go_on(machine, linked, going)
            resumed.append(going)
    return resumed


def _child_keys(
    machine: Machine, linked: LinkedContext, parents: Integers, count: Integers
) -> Array | int:
    if not machine.linked.graph.has_random:
        return 0
    assert linked.context.parent is not None
    key = machine.rows[linked.context.parent].key[parents]
    for salt in linked.context.key_path:
        key = mix(key, salt)
    return mix(key, count)


def fire_key(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """The key of a random operation."""
    assert isinstance(node.node.operation, Key)
    key = machine.rows[node.context].key[rows]
    for salt in node.node.operation.path:
        key = mix(key, salt)
    _emit(machine, node, rows, [key.view(np.int64)])


def fire_call(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """New rows of the callee; arguments follow as they arrive."""
    operation = node.node.operation
    assert isinstance(operation, Call)
    callee, site = operation.callee, operation.site
    home = machine.rows[node.context]
    depth = home.depth[rows] + 1
    limit = machine.limits.depth
    if limit is not None and depth.max() > limit:
        name = machine.linked.contexts[callee].context.name
        fault = too_deep(name, depth.max(), limit)
        raise machine.fault(node, rows, HostOperationError(np.flatnonzero(depth > limit), fault))
    home.todo[rows] += 1
    key: Array | int = 0
    if machine.linked.graph.has_random:
        key = home.key[rows]
        for salt in operation.path:
            key = mix(key, salt)
    new = machine.create(callee, rows, site, home.instance[rows], depth, 0, key)
    home = machine.rows[node.context]
    home.children[node.child][rows] = new


def fire_enter(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Iteration 0 of a loop."""
    operation = node.node.operation
    assert isinstance(operation, Enter)
    linked = machine.linked.contexts[operation.loop]
    initial = [machine.fetch(node, k, rows, arrays) for k in range(operation.carried)]
    home = machine.rows[node.context]
    home.todo[rows] += 1
    home.children[node.child][rows] = 0  # no iteration is running
    key = _child_keys(machine, linked, rows, np.zeros(len(rows), np.int64))
    new = machine.create(operation.loop, rows, 0, home.instance[rows], home.depth[rows], 0, key)
    _deliver_inputs(machine, linked, new, initial)


def _deliver_inputs(
    machine: Machine, linked: LinkedContext, rows: Integers, values: list[Array]
) -> None:
    value_of: dict[Wire, Array] = dict(zip(linked.context.inputs, values, strict=True))
    for group in linked.inputs:
        machine.deliver(group, rows, [value_of[wire] for wire in group.wires])


def fire_fork(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """One row for each element of the sequences."""
    operation = node.node.operation
    assert isinstance(operation, Fork)
    linked = machine.linked.contexts[operation.each]
    inputs = [machine.fetch(node, k, rows, arrays) for k in range(operation.elements + 1)]
    length = sequence_lengths(machine, node.node.inputs[0], inputs[0])
    _open_arrays(machine, node, rows, length)
    parents = np.repeat(rows, length)
    if not len(parents):
        return
    home = machine.rows[node.context]
    index = ranges(np.zeros(len(rows), np.int64), length)
    np.add.at(home.todo, parents, 1)
    key = _child_keys(machine, linked, parents, index)
    instances, depth = home.instance[parents], home.depth[parents]
    new = machine.create(operation.each, parents, 0, instances, depth, index, key)
    wires = node.node.inputs[1 : operation.elements + 1]
    values = [
        _element(machine, wire, np.repeat(value, length), index)
        for wire, value in zip(wires, inputs[1:], strict=True)
    ]
    _deliver_inputs(machine, linked, new, values)


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
        numbers = _array_place(machine, wire).create(length)
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
    place = _array_place(machine, node.node.outputs[position])
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


def fire_upload(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Host values get slots."""
    values = machine.fetch(node, 0, rows, arrays)
    place = machine.place(node.node.outputs[0])
    assert isinstance(place, SlotSpace)
    target = place.allocate(len(rows))
    machine.out.append(Store(values, target))
    slots = slots_of(target)
    _emit(machine, node, rows, [slots])
    machine.held.append(lambda: place.release(target))


# ---- elements, sizes, arrays ---------------------------------------------------------------------


def fire_primitive(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """An operation on sequences or arrays."""
    operation = node.node.operation
    assert isinstance(operation, Primitive)
    values = _inputs(machine, node, rows, arrays)
    _PRIMITIVES[operation.name](machine, node, rows, values)


def _checked(index: Integers, length: Integers) -> Integers:
    """Indices from the start; negative ones count from the end."""
    if np.count_nonzero(index.view(np.uint64) >= length.view(np.uint64)):
        return count_from_start(index, length)
    return index


def _fire_element(machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]) -> None:
    table = machine.place(node.node.inputs[0])
    assert isinstance(table, SequenceTable)
    numbers, index = values
    index = _checked(index, table.length[numbers])
    _emit(machine, node, rows, [table.base[numbers] + index])


def _fire_size(machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]) -> None:
    operation, place = node.node.operation, machine.place(node.node.inputs[0])
    assert isinstance(operation, Primitive)
    if isinstance(place, BoxTable):
        _emit(machine, node, rows, [place.sizes(values[0], operation.dimension)])
        return
    _emit(machine, node, rows, [sequence_lengths(machine, node.node.inputs[0], values[0])])


def _array_place(machine: Machine, wire: Wire) -> ArrayTable:
    place = machine.place(wire)
    assert isinstance(place, ArrayTable)
    return place


def _emit_fresh(
    machine: Machine, node: LinkedNode, rows: Integers, place: Any, numbers: Integers
) -> None:
    _emit(machine, node, rows, [numbers])
    machine.held.append(lambda: place.add(numbers, -1))


def _fire_array_new(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    operation, size = node.node.operation, values[0]
    assert isinstance(operation, Primitive)
    if (size < 0).any():
        raise HostOperationError(np.flatnonzero(size < 0), negative_size(size[size < 0][0]))
    place = _array_place(machine, node.node.outputs[0])
    numbers = place.create(size, can_grow=operation.dynamic_size)
    _emit_fresh(machine, node, rows, place, numbers)


def _fire_array_unstack(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    table = machine.place(node.node.inputs[0])
    assert isinstance(table, SequenceTable)
    length = table.length[values[0]]
    place = _array_place(machine, node.node.outputs[0])
    numbers = place.of_slots(ranges(table.base[values[0]], length), length)
    _emit_fresh(machine, node, rows, place, numbers)


def _fire_array_read(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    place = _array_place(machine, node.node.inputs[0])
    numbers, index = values
    length = place.length[numbers]
    outside = np.flatnonzero((index < 0) | (index >= length))
    if len(outside):
        fault = array_index_out_of_range("read", index[outside[0]], length[outside[0]])
        raise HostOperationError(outside, fault)
    slots = place.read(numbers, index)
    missing = np.flatnonzero(slots == UNWRITTEN)
    if len(missing):
        fault = never_written("read", index[missing[0]], length[missing[0]])
        raise HostOperationError(missing, fault)
    _emit(machine, node, rows, [slots])


def _fire_array_write(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    place = _array_place(machine, node.node.outputs[0])
    numbers, index, slots = values
    length = place.length[numbers]
    outside = np.flatnonzero((index < 0) | ((index >= length) & ~place.can_grow[numbers]))
    if len(outside):
        fault = array_index_out_of_range("write", index[outside[0]], length[outside[0]])
        raise HostOperationError(outside, fault)
    written = place.copy(numbers, np.maximum(length, index + 1), may_steal=node.is_last_use)
    place.write(written, index, slots)
    _emit_fresh(machine, node, rows, place, written)


def _fire_array_stack(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    place = _array_place(machine, node.node.inputs[0])
    slots, length = place.all_slots(values[0]), place.length[values[0]]
    missing = np.flatnonzero(slots == UNWRITTEN)
    if len(missing):
        row = int(np.searchsorted(np.cumsum(length), missing[0], side="right"))
        element = missing[0] - (np.cumsum(length) - length)[row]
        fault = never_written("stack", element, length[row])
        raise HostOperationError(np.array([row]), fault)
    space = place.elements
    assert isinstance(space, SlotSpace)
    starts = np.cumsum(length) - length
    base = slots[np.minimum(starts, max(len(slots) - 1, 0))] if len(slots) else starts
    if not np.array_equal(slots, ranges(base, length)):
        target = space.allocate(len(slots), as_run=True)
        assert isinstance(target, Span)
        machine.out.append(Copy(pick(space.number, slots), target))
        machine.held.append(lambda: space.release(target))
        base = target.start + starts
    _emit_fresh(machine, node, rows, space.sequences, space.sequences.create(base, length))


_PRIMITIVES: dict[str, Callable[..., None]] = {
    "Element": _fire_element,
    "Size": _fire_size,
    "ArraySize": _fire_size,
    "ArrayNew": _fire_array_new,
    "ArrayUnstack": _fire_array_unstack,
    "ArrayRead": _fire_array_read,
    "ArrayWrite": _fire_array_write,
    "ArrayStack": _fire_array_stack,
}

FIRE: dict[str, Callable[..., None]] = {
    "compute": fire_compute,
    "pass": fire_pass,
    "switch": fire_switch,
    "key": fire_key,
    "call": fire_call,
    "enter": fire_enter,
    "fork": fire_fork,
    "upload": fire_upload,
    "primitive": fire_primitive,
    "block": fire_block,
}
