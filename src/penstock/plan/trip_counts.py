"""How often loops run, where that is known when they are entered: a counter below a bound.

Rows enter such a loop longest first. The rows of each iteration are then the first of those before,
and what one iteration has written is read by the next as one run of slots, without a gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.ir.graph import Compute, Enter, Home, HostStep, Primitive, Switch, Wire
from penstock.ir.types import TensorType
from penstock.plan.forks import sequence_lengths
from penstock.plan.linked import Access, Linked, LinkedContext, LinkedNode, TripCount
from penstock.plan.schedule import Array, Integers

if TYPE_CHECKING:
    from penstock.plan.machine import Machine

#: Comparisons of a counter (first or second) with a bound.
_COUNTER_FIRST = {"lt": True, "le": True, "gt": False, "ge": False}


def find_trip_counts(linked: Linked) -> None:
    """Tell the nodes that enter loops what bounds them."""
    for context in linked.contexts:
        opener = context.opener
        if opener is not None and isinstance(opener.node.operation, Enter):
            opener.trip_count = _trip_count(context, opener)


def _trip_count(loop: LinkedContext, opener: LinkedNode) -> TripCount | None:
    found = _comparison(loop)
    if found is None or found[0] not in loop.context.inputs:
        return None
    if not all(isinstance(w.type, TensorType) and w.type.dtype == "int64" for w in found):
        return None
    counter, bound = loop.context.inputs.index(found[0]), found[1]
    sized = _sized(loop, bound)
    access = _access(opener, sized or bound)
    return None if access is None else TripCount(counter, access, sized)


def _sized(loop: LinkedContext, bound: Wire) -> Wire | None:
    """The sequence whose length a bound is, where the loop asks for it every time."""
    for node in loop.context.nodes:
        if bound in node.outputs and node.operation == Primitive("Size"):
            kind = node.inputs[0].type
            return node.inputs[0] if isinstance(kind, TensorType) and kind.is_sequence else None
    return None


def _access(opener: LinkedNode, wire: Wire) -> Access | None:
    """How the node that enters a loop finds a value from outside of it."""
    if wire.input is not None:
        return Access(wire.home is Home.HOST, input=wire.input)
    if wire in opener.node.inputs:
        return opener.access[opener.node.inputs.index(wire)]
    return None


def _comparison(loop: LinkedContext) -> tuple[Wire, Wire] | None:
    """The counter and the bound that a loop's condition compares, if that is all it does."""
    switch = next((node for node in loop.nodes if node.is_loop_switch), None)
    if switch is None or not isinstance(switch.node.operation, Switch):
        return None
    predicate = switch.node.inputs[0]
    for node in loop.context.nodes:
        if predicate in node.outputs and isinstance(node.operation, Compute):
            made = {step.output: step for step in node.operation.steps}
            step = made[predicate]
            wires = [_unshifted(w, made) for w in step.operands if isinstance(w, Wire)]
            if step.name in _COUNTER_FIRST and len(wires) == 2:
                first, second = wires
                return (first, second) if _COUNTER_FIRST[step.name] else (second, first)
    return None


def _unshifted(wire: Wire, made: dict[Wire, HostStep]) -> Wire:
    """A counter some iterations ahead is still that counter."""
    step = made.get(wire)
    if step is None or step.name != "add":
        return wire
    counter, ahead = step.operands
    return counter if isinstance(counter, Wire) and isinstance(ahead, int) else wire


def longest_first(
    machine: Machine, node: LinkedNode, rows: Integers, initial: list[Array]
) -> Integers:
    """The positions of rows that enter a loop, by how often it will run for them."""
    assert node.trip_count is not None
    counter, access, sized = node.trip_count
    bound = machine.look_up(node.context, access, rows)
    if sized is not None:
        bound = sequence_lengths(machine, sized, bound)
    return np.argsort(initial[counter] - bound, kind="stable")
