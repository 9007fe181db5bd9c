"""What each primitive does when it fires: one function per kind of node, in one table.

A firing reads the columns of its rows, moves integers, and delivers what it makes. Only blocks,
uploads and reads make instructions. Loops, for-each and arrays are in `loops`, `forks` and
`array_operations`; blocks are in `launches`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.faults import branch_out_of_range, nan_predicate, too_deep
from penstock.ir.graph import Call, Compute, Key, Switch
from penstock.plan.array_operations import fire_primitive
from penstock.plan.faults import HostOperationError
from penstock.plan.firing import Arrays, emit, fetch_all
from penstock.plan.forks import fire_fork
from penstock.plan.launches import fire_block
from penstock.plan.loops import fire_enter, switch_loop
from penstock.plan.random_keys import mix
from penstock.plan.schedule import (
    Array,
    Integers,
    Store,
    slots_of,
)
from penstock.plan.slots import SlotSpace

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedNode
    from penstock.plan.machine import Machine


def fire_compute(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Host operations."""
    assert isinstance(node.node.operation, Compute)
    assert node.function is not None
    values = fetch_all(machine, node, rows, arrays)
    emit(machine, node, rows, node.function(len(rows), machine.tables, *values))


def fire_pass(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Outer values enter an arm."""
    emit(machine, node, rows, fetch_all(machine, node, rows, arrays))


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
            switch_loop(machine, node, rows, taken)
            return
    else:
        outside = np.flatnonzero((index < 0) | (index >= len(operation.arms)))
        if len(outside):
            fault = branch_out_of_range(index[outside[0]], len(operation.arms))
            raise HostOperationError(outside, fault)
        taken = index
    machine.switch(node, rows, taken)


def fire_key(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """The key of a random operation."""
    assert isinstance(node.node.operation, Key)
    machine.has_drawn = True
    key = machine.rows[node.context].key[rows]
    for salt in node.node.operation.path:
        key = mix(key, salt)
    emit(machine, node, rows, [key.view(np.int64)])


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


def fire_upload(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Host values get slots."""
    values = machine.fetch(node, 0, rows, arrays)
    place = machine.place(node.node.outputs[0])
    assert isinstance(place, SlotSpace)
    target = place.allocate(len(rows))
    machine.out.append(Store(values, target))
    slots = slots_of(target)
    emit(machine, node, rows, [slots])
    machine.held.append(lambda: place.release(target))


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
