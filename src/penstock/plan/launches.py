"""Turns a firing of a block into launches: operands by slot, results to fresh slots.

A block without dynamic dimensions is one launch. A flat block runs over all elements of all rows at
once. A block that mixes along a dynamic dimension runs padded for rows of different sizes where it
can (`padded_launches`), else once for each combination of sizes among its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.faults import lengths_differ
from penstock.ir.graph import Block, Home, Wire
from penstock.ir.types import TensorType
from penstock.plan.faults import HostOperationError
from penstock.plan.launch_values import (
    Launching,
    box_table,
    elements_of,
    new_sequences,
    new_values,
    operand_of,
    sequence_table,
)
from penstock.plan.padded_launches import Group, equal_rows, group_by_bucket, launch_padded
from penstock.plan.padding import Padding
from penstock.plan.schedule import (
    Array,
    Hosted,
    Integers,
    Launch,
    Operand,
    Shared,
    Sized,
    Span,
    Target,
    pick,
    slots_of,
)
from penstock.plan.slots import SequenceTable, SlotSpace, ranges

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedNode
    from penstock.plan.machine import Machine


def fire_block(
    machine: Machine, node: LinkedNode, rows: Integers, arrays: Sequence[Array] | None
) -> None:
    """Launch a block for rows."""
    if machine.gates is not None:
        machine.gates.hold_back(machine, node, rows)
    plan = machine.launch_plans.get(node)
    if plan is None:
        plan = machine.launch_plans[node] = _plan(machine, node)
    if plan.is_plain:
        _launch_plain(machine, node, plan, rows)
        return
    values = {
        position: machine.fetch(node, position, rows, None)
        for position, wire in enumerate(node.node.inputs)
        if wire.home is not Home.UNIFORM
    }
    block = node.node.operation
    assert isinstance(block, Block)
    if block.is_flat:
        _launch_flat(machine, node, rows, values)
    else:
        launch_mixing(machine, node, rows, values)


def launch_mixing(
    machine: Launching, node: LinkedNode, rows: Integers, values: dict[int, Array]
) -> None:
    """Launch a block that mixes along dynamic dimensions, or is told sizes."""
    block = node.node.operation
    assert isinstance(block, Block)
    keys = sizes_of(machine, node, values)
    if all((sizes == sizes[0]).all() for sizes in keys.values()):
        _launch_equal(machine, node, block, rows, values, _first(keys))
        return
    padding = machine.shapes.padding(node.block, keys)
    for mine, buckets in _groups(machine, node, padding, values, keys):
        taken = {position: value[mine] for position, value in values.items()}
        sizes = {position: size[mine] for position, size in keys.items()}
        if buckets is None or padding is None:
            _launch_equal(machine, node, block, rows[mine], taken, _first(sizes))
        else:
            launch_padded(machine, node, padding, rows[mine], taken, sizes, buckets)


class LaunchPlan(NamedTuple):
    """What is known of all launches of a block in one run."""

    #: Whether no operand and no result has a dynamic dimension.
    is_plain: bool
    #: For each operand what it is for all launches (uniform), its arena, or None for a host value.
    operands: tuple[Shared | SlotSpace | None, ...]
    targets: tuple[SlotSpace, ...]


def _plan(machine: Machine, node: LinkedNode) -> LaunchPlan:
    operands: list[Shared | SlotSpace | None] = []
    block = node.node.operation
    assert isinstance(block, Block)
    is_plain = not block.is_flat and not block.sizes
    for wire in node.node.inputs:
        if wire.home is Home.UNIFORM:
            operands.append(Shared(wire.number))
        elif wire.home is Home.HOST:
            operands.append(None)
        else:
            place = machine.place(wire)
            is_plain = is_plain and isinstance(place, SlotSpace)
            operands.append(place if isinstance(place, SlotSpace) else None)
    places = [machine.place(wire) for wire in node.node.outputs]
    targets = tuple(place for place in places if isinstance(place, SlotSpace))
    return LaunchPlan(is_plain and len(targets) == len(places), tuple(operands), targets)


def _launch_plain(machine: Machine, node: LinkedNode, plan: LaunchPlan, rows: Integers) -> None:
    """One launch for all rows."""
    operands: list[Operand] = []
    for position, operand in enumerate(plan.operands):
        if isinstance(operand, Shared):
            operands.append(operand)
            continue
        values = machine.fetch(node, position, rows, None)
        operands.append(Hosted(values) if operand is None else pick(operand.number, values))
    count = len(rows)
    targets = [space.allocate(count) for space in plan.targets]
    machine.put_launch(node, rows, Launch(node.block, count, tuple(operands), tuple(targets)))
    if node.output is not None:
        machine.deliver(node.output, rows, [slots_of(target) for target in targets])
    machine.held.extend(
        partial(space.release, target) for space, target in zip(plan.targets, targets)
    )


def sizes_of(machine: Launching, node: LinkedNode, values: dict[int, Array]) -> dict[int, Array]:
    """For each dynamic operand the length, size or arena of each row's value."""
    block = node.node.operation
    assert isinstance(block, Block)
    keys: dict[int, Array] = {}
    for position, wire in enumerate(node.node.inputs):
        if position in block.sizes:
            keys[position] = values[position]
        elif (table := sequence_table(machine, wire)) is not None:
            keys[position] = table.length[values[position]]
        elif (boxes := box_table(machine, wire)) is not None:
            keys[position] = boxes.arena[values[position]]
    return keys


def _first(keys: dict[int, Array]) -> dict[int, int]:
    return {position: int(sizes[0]) for position, sizes in keys.items()}


def _groups(
    machine: Launching,
    node: LinkedNode,
    padding: Padding | None,
    values: dict[int, Array],
    keys: dict[int, Array],
) -> Iterator[Group]:
    """Rows that run together: of one bucket where the block can be padded, else of one size."""
    if padding is not None:
        yield from group_by_bucket(machine, node, padding, values, keys)
        return
    for mine, _ in equal_rows(list(keys.values())):
        yield Group(mine, None)


def _launch_equal(
    machine: Launching,
    node: LinkedNode,
    block: Block,
    rows: Integers,
    values: dict[int, Array],
    keys: dict[int, int],
) -> None:
    """One launch for rows of one size."""
    operands: list[Operand] = []
    sizes: list[int] = []
    for position, wire in enumerate(node.node.inputs):
        if position not in keys:
            operands.append(operand_of(machine, wire, values.get(position)))
            continue
        operand, dynamic = _dynamic_operand(machine, block, wire, position, values, keys[position])
        operands.append(operand)
        sizes.extend(dynamic)
    targets: list[Target] = []
    delivered: list[Array] = []
    kinds = [wire.type for wire in node.node.outputs]
    is_dynamic = any(isinstance(kind, TensorType) and kind.is_dynamic for kind in kinds)
    shapes: Sequence[tuple[int, ...] | None] = [None] * len(kinds)
    if is_dynamic:
        shapes = machine.shapes.shapes(node.block, tuple(sizes))
    for wire, shape in zip(node.node.outputs, shapes, strict=True):
        target, slots = new_values(machine, wire, len(rows), shape)
        targets.append(target)
        delivered.append(slots)
    machine.put_launch(node, rows, Launch(node.block, len(rows), tuple(operands), tuple(targets)))
    if node.output is not None:
        machine.deliver(node.output, rows, delivered)


def _dynamic_operand(
    machine: Launching,
    block: Block,
    wire: Wire,
    position: int,
    values: dict[int, Array],
    key: int,
) -> tuple[Operand, list[int]]:
    """An operand with dynamic dimensions, and their sizes."""
    if position in block.sizes:
        return Sized(key), [key]
    table = sequence_table(machine, wire)
    if table is not None:
        return elements_of(table, values[position], key), [key]
    boxes = box_table(machine, wire)
    assert boxes is not None
    assert isinstance(wire.type, TensorType)
    shape = machine.spaces[key].kind.shape
    sizes = [size for size, name in zip(shape, wire.type.shape) if isinstance(name, str)]
    return pick(key, boxes.slot[values[position]]), sizes


def _launch_flat(
    machine: Machine, node: LinkedNode, rows: Integers, values: dict[int, Array]
) -> None:
    """Run over all elements of all rows; operands without elements are repeated for each."""
    tables = {p: sequence_table(machine, wire) for p, wire in enumerate(node.node.inputs)}
    sequences = {position: table for position, table in tables.items() if table is not None}
    lengths = [table.length[values[position]] for position, table in sequences.items()]
    for other in lengths[1:]:
        clash = np.flatnonzero(other != lengths[0])
        if len(clash):
            fault = lengths_differ(lengths[0][clash[0]], other[clash[0]])
            raise HostOperationError(clash, fault)
    length = lengths[0]
    operands: list[Operand] = []
    for position, wire in enumerate(node.node.inputs):
        table = tables[position]
        if table is not None:
            slots = ranges(table.base[values[position]], length)
            space = table.space.number
            operands.append(pick(space, slots) if len(slots) else Span(space, 0, 0))
        else:
            value = values.get(position)
            operands.append(
                operand_of(machine, wire, None if value is None else np.repeat(value, length))
            )
    total = int(length.sum())
    targets, delivered = [], []
    for wire in node.node.outputs:
        place = machine.place(wire)
        assert isinstance(place, SequenceTable)
        target, numbers = new_sequences(machine, place, np.cumsum(length) - length, length, None)
        targets.append(target)
        delivered.append(numbers)
    if total:
        machine.out.append(Launch(node.block, total, tuple(operands), tuple(targets)))
        machine.launched.append(np.repeat(machine.rows[node.context].instance[rows], length))
    if node.output is not None:
        machine.deliver(node.output, rows, delivered)
