"""Elements, sizes and TensorArrays: operations that move slot numbers and touch no value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.faults import (
    array_index_out_of_range,
    negative_size,
    never_written,
    uneven_elements,
)
from penstock.ir.graph import Primitive
from penstock.plan.arrays import UNWRITTEN
from penstock.plan.boxes import BoxTable
from penstock.plan.faults import HostOperationError
from penstock.plan.firing import Arrays, array_place, emit, emit_fresh, fetch_all
from penstock.plan.forks import sequence_lengths
from penstock.plan.host_kernels import count_from_start
from penstock.plan.schedule import (
    Array,
    Copy,
    Integers,
    Span,
    pick,
    slots_of,
)
from penstock.plan.slots import SequenceTable, SlotSpace, ranges

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedNode
    from penstock.plan.machine import Machine


def fire_primitive(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """An operation on sequences or arrays."""
    operation = node.node.operation
    assert isinstance(operation, Primitive)
    values = fetch_all(machine, node, rows, arrays)
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
    emit(machine, node, rows, [table.base[numbers] + index])


def _fire_size(machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]) -> None:
    operation, place = node.node.operation, machine.place(node.node.inputs[0])
    assert isinstance(operation, Primitive)
    if isinstance(place, BoxTable):
        emit(machine, node, rows, [place.sizes(values[0], operation.dimension)])
        return
    emit(machine, node, rows, [sequence_lengths(machine, node.node.inputs[0], values[0])])


def _fire_array_new(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    operation, size = node.node.operation, values[0]
    assert isinstance(operation, Primitive)
    if (size < 0).any():
        raise HostOperationError(np.flatnonzero(size < 0), negative_size(size[size < 0][0]))
    place = array_place(machine, node.node.outputs[0])
    numbers = place.create(size, can_grow=operation.dynamic_size)
    emit_fresh(machine, node, rows, place, numbers)


def _fire_array_unstack(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    table = machine.place(node.node.inputs[0])
    assert isinstance(table, SequenceTable)
    length = table.length[values[0]]
    place = array_place(machine, node.node.outputs[0])
    numbers = place.of_slots(ranges(table.base[values[0]], length), length)
    emit_fresh(machine, node, rows, place, numbers)


def _fire_array_read(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    place = array_place(machine, node.node.inputs[0])
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
    emit(machine, node, rows, [slots])


def _fire_array_write(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    place = array_place(machine, node.node.outputs[0])
    numbers, index, slots = values
    length = place.length[numbers]
    outside = np.flatnonzero((index < 0) | ((index >= length) & ~place.can_grow[numbers]))
    if len(outside):
        fault = array_index_out_of_range("write", index[outside[0]], length[outside[0]])
        raise HostOperationError(outside, fault)
    written = place.copy(numbers, np.maximum(length, index + 1), may_steal=node.is_last_use)
    place.write(written, index, slots)
    emit_fresh(machine, node, rows, place, written)


def _fire_array_stack(
    machine: Machine, node: LinkedNode, rows: Integers, values: list[Array]
) -> None:
    place = array_place(machine, node.node.inputs[0])
    slots, length = place.all_slots(values[0]), place.length[values[0]]
    missing = np.flatnonzero(slots == UNWRITTEN)
    if len(missing):
        row = int(np.searchsorted(np.cumsum(length), missing[0], side="right"))
        element = missing[0] - (np.cumsum(length) - length)[row]
        fault = never_written("stack", element, length[row])
        raise HostOperationError(np.array([row]), fault)
    space = place.elements
    if not isinstance(space, SlotSpace):
        _stack_boxed(machine, node, rows, space, slots, length)
        return
    starts = np.cumsum(length) - length
    base = slots[np.minimum(starts, max(len(slots) - 1, 0))] if len(slots) else starts
    if not np.array_equal(slots, ranges(base, length)):
        target = space.allocate(len(slots), as_run=True)
        assert isinstance(target, Span)
        machine.out.append(Copy(pick(space.number, slots), target))
        machine.held.append(lambda: space.release(target))
        base = target.start + starts
    emit_fresh(machine, node, rows, space.sequences, space.sequences.create(base, length))


def _stack_boxed(
    machine: Machine,
    node: LinkedNode,
    rows: Integers,
    elements: SequenceTable | BoxTable,
    numbers: Integers,
    length: Integers,
) -> None:
    """Stack elements that have dynamic dimensions themselves: one box for each row."""
    boxes = machine.place(node.node.outputs[0])
    assert isinstance(boxes, BoxTable)
    keys = _element_keys(elements, numbers, length)
    made = np.empty(len(rows), np.int64)
    starts = np.cumsum(length) - length
    for count, key in np.unique(np.stack((length, keys), axis=1), axis=0):
        mine = np.flatnonzero((length == count) & (keys == key))
        chosen = numbers[ranges(starts[mine], length[mine])]
        arena, shape, slots = _element_slots(elements, int(key), chosen)
        space = boxes.space((int(count), *shape))
        target = space.allocate(len(mine))
        if len(slots):
            machine.out.append(Copy(pick(arena, slots), target))
        made[mine] = boxes.create(space.number, slots_of(target))
        machine.held.append(partial(space.release, target))
    emit_fresh(machine, node, rows, boxes, made)


def _element_keys(
    elements: SequenceTable | BoxTable, numbers: Integers, length: Integers
) -> Integers:
    """What the elements of each row have in common: their length, or their arena."""
    found = elements.length if isinstance(elements, SequenceTable) else elements.arena
    starts = np.cumsum(length) - length
    has_any = length > 0
    keys = np.zeros(len(length), np.int64)
    keys[has_any] = found[numbers[starts[has_any]]]
    uneven = np.flatnonzero(found[numbers] != np.repeat(keys, length))
    if len(uneven):
        row = int(np.searchsorted(np.cumsum(length), uneven[0], side="right"))
        raise HostOperationError(np.array([row]), uneven_elements())
    return keys


def _element_slots(
    elements: SequenceTable | BoxTable, key: int, numbers: Integers
) -> tuple[int, tuple[int, ...], Integers]:
    """The arena, the shape of one element, and the slots of elements."""
    if isinstance(elements, SequenceTable):
        space = elements.space
        slots = ranges(elements.base[numbers], elements.length[numbers])
        return space.number, (key, *space.kind.shape), slots
    return key, elements.spaces[key].kind.shape, elements.slot[numbers]


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
