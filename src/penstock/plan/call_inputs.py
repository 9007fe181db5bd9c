"""What the planner knows of the inputs of a call: control values, and how large the data are.

Where control is decided by the inputs alone, this is all that a plan depends on beside the graph
and the limits; its digest names the plan in a cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.ir.graph import Wire
from penstock.plan.boxes import BoxTable
from penstock.plan.limits import Limits
from penstock.plan.schedule import Array, Integers, Span
from penstock.plan.slots import SequenceTable, SlotSpace

if TYPE_CHECKING:
    from penstock.plan.machine import Machine

Shape = tuple[int, ...]

#: For each input the slots that its values got when they came in.
Adopted = tuple[tuple[Span, ...], ...]


class HostInput(NamedTuple):
    """An input that steers: a value per instance, or the elements of a table per instance."""

    values: Array
    #: How many elements each instance has; None for single values.
    lengths: Integers | None = None


class SlotInput(NamedTuple):
    """An input that is computed with."""

    #: How many elements each instance has; None for values that are no sequences.
    lengths: Integers | None = None
    #: The shape of each instance, where shapes differ in more than the length.
    shapes: tuple[Shape, ...] | None = None
    #: Whether all instances have one value.
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class CallInputs:
    """All inputs of a call, in the order of the graph; None where a form is not asked for."""

    count: int
    host: tuple[HostInput | None, ...]
    slots: tuple[SlotInput | None, ...]

    def digest(self, limits: Limits, window: int) -> bytes:
        """A name for the plan that these inputs lead to."""
        given = [array for item in self.host if item is not None for array in item]
        given += [item.lengths for item in self.slots if item is not None]
        facts = tuple([array if array is None else (array.dtype, array.shape) for array in given])
        slots = tuple([item and (item.shapes, item.is_shared) for item in self.slots])
        hasher = _begun(limits, self.count, window, facts, slots).copy()
        for array in given:
            if array is not None:
                hasher.update(np.ascontiguousarray(array).data)
        digest: bytes = hasher.digest()
        return digest


@lru_cache(maxsize=256)
def _begun(limits: Limits, count: int, window: int, facts: object, slots: object) -> Any:
    """A hasher that has taken in all but the numbers; for a copy."""
    return sha256(repr((limits, count, window, facts, slots)).encode())


def by_shape(shapes: Iterable[Shape]) -> dict[Shape, list[int]]:
    """The instances of each shape, in the order met."""
    found: dict[Shape, list[int]] = {}
    for number, shape in enumerate(shapes):
        found.setdefault(shape, []).append(number)
    return found


def take_inputs(machine: Machine, inputs: CallInputs) -> Adopted:
    """Give a machine its inputs, and the inputs their slots."""
    for position, host in enumerate(inputs.host):
        if host is not None:
            machine.input_host[position] = _take_host(machine, host)
    adopted: list[tuple[Span, ...]] = []
    for position, (entry, slots) in enumerate(
        zip(machine.linked.graph.inputs, inputs.slots, strict=True)
    ):
        if slots is None:
            adopted.append(())
            continue
        assert entry.slot is not None
        machine.input_slots[position], spans = _take_slots(machine, entry.slot, slots)
        adopted.append(spans)
    return tuple(adopted)


def _take_host(machine: Machine, host: HostInput) -> Array:
    if host.lengths is None:
        return host.values
    tables, lengths = machine.tables, host.lengths
    dtype = str(host.values.dtype)
    known = tables.flat.get(dtype, np.empty(0, dtype))
    base = len(known) + np.cumsum(lengths) - lengths
    tables.flat[dtype] = np.concatenate((known, host.values))
    first = len(tables.base)
    tables.base = np.concatenate((tables.base, base))
    tables.length = np.concatenate((tables.length, lengths))
    return np.arange(first, first + len(lengths))


def _take_slots(machine: Machine, wire: Wire, item: SlotInput) -> tuple[Integers, tuple[Span, ...]]:
    """What rows store of an input, and where its values go."""
    place = machine.place(wire)
    if isinstance(place, SequenceTable):
        assert item.lengths is not None
        span = _adopt(machine, place.space, int(item.lengths.sum()))
        numbers = place.create(span.start + np.cumsum(item.lengths) - item.lengths, item.lengths)
        machine.pins.append(lambda: place.add(numbers, -1))
        return numbers, (span,)
    if isinstance(place, BoxTable):
        assert item.shapes is not None
        return _take_boxes(machine, place, item.shapes)
    assert isinstance(place, SlotSpace)
    if item.is_shared:
        span = _adopt(machine, place, 1)
        return np.full(machine.count, span.start, np.int64), (span,)
    span = _adopt(machine, place, machine.count)
    return np.arange(span.start, span.start + machine.count), (span,)


def _take_boxes(
    machine: Machine, table: BoxTable, shapes: tuple[Shape, ...]
) -> tuple[Integers, tuple[Span, ...]]:
    """Values of one shape go together."""
    boxes = np.empty(len(shapes), np.int64)
    spans = []
    for shape, numbers in by_shape(shapes).items():
        space = table.space(shape)
        span = _adopt(machine, space, len(numbers))
        slots = np.arange(span.start, span.start + span.count)
        boxes[numbers] = table.create(space.number, slots)
        spans.append(span)
    machine.pins.append(lambda: table.add(boxes, -1))
    return boxes, tuple(spans)


def _adopt(machine: Machine, space: SlotSpace, count: int) -> Span:
    """Pinned slots; whoever runs the plan brings the memory."""
    start = space.adopt(count)
    space.unannounced.pop()
    span = Span(space.number, start, count)
    machine.pins.append(lambda: space.release(span))
    return span
