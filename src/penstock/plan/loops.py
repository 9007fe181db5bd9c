"""Loops: entering them, going on with the next iteration, holding iterations back.

Exit and NextIteration are moves of values, and have no function here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.ir.graph import Enter
from penstock.plan.firing import Arrays, child_keys, deliver_inputs
from penstock.plan.schedule import Array, Integers
from penstock.plan.trip_counts import longest_first

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedContext, LinkedNode
    from penstock.plan.machine import Machine

#: In the column `site` of a loop's rows: the body of this iteration has started.
RUNNING = 1


def fire_enter(machine: Machine, node: LinkedNode, rows: Integers, arrays: Arrays) -> None:
    """Iteration 0 of a loop."""
    operation = node.node.operation
    assert isinstance(operation, Enter)
    linked = machine.linked.contexts[operation.loop]
    initial = [machine.fetch(node, k, rows, arrays) for k in range(operation.carried)]
    if node.trip_count is not None:
        order = longest_first(machine, node, rows, initial)
        rows, initial = rows[order], [values[order] for values in initial]
    home = machine.rows[node.context]
    home.todo[rows] += 1
    home.children[node.child][rows] = 0  # no iteration is running
    key = child_keys(machine, linked, rows, np.zeros(len(rows), np.int64))
    new = machine.create(operation.loop, rows, 0, home.instance[rows], home.depth[rows], 0, key)
    deliver_inputs(machine, linked, new, initial)


def switch_loop(machine: Machine, node: LinkedNode, rows: Integers, taken: Array) -> None:
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


def _go_on(machine: Machine, linked: LinkedContext, rows: Integers) -> None:
    """Start the bodies of iterations, with a successor for each."""
    context = linked.context
    home = machine.rows[context.index]
    parents = home.parent[rows]
    iteration = home.count[rows] + 1
    key = child_keys(machine, linked, parents, iteration)
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
    if resumed and machine.gates is not None:
        machine.gates.open(machine, context, resumed)
    return resumed
