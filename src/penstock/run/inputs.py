"""Loads the inputs of a call: control to the host, data into arenas, shared values into single
slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.ir.graph import Input
from penstock.ir.types import TensorType
from penstock.plan.boxes import BoxTable
from penstock.plan.schedule import Integers, Span
from penstock.plan.slots import SequenceTable, SlotSpace

if TYPE_CHECKING:
    from penstock.run.engine import Columns, Run

Column = Sequence[torch.Tensor] | torch.Tensor


def load_inputs(run: Run, columns: Columns, count: int) -> None:
    """Fill the machine's inputs, in the forms in which the graph reads them."""
    for position, entry in enumerate(run.executable.graph.inputs):
        if entry.uniform is not None:
            _load_shared(run, position, entry, count)
            continue
        assert entry.number is not None
        column = columns[entry.number]
        if entry.host is not None:
            run.machine.input_host[position] = _load_host(run, entry.type, column, count)
        if entry.slot is not None:
            run.machine.input_slots[position] = _load_slots(run, entry, column, count)


def _load_shared(run: Run, position: int, entry: Input, count: int) -> None:
    assert entry.uniform is not None
    value = run.uniform(entry.uniform.number)
    if entry.host is not None:
        run.machine.input_host[position] = np.broadcast_to(value.cpu().numpy(), (count,))
    if entry.slot is not None:
        space = run.machine.place(entry.slot)
        assert isinstance(space, SlotSpace)
        start = _adopt(run, space, value.unsqueeze(0))
        run.machine.input_slots[position] = np.full(count, start, np.int64)


def _adopt(run: Run, space: SlotSpace, values: torch.Tensor) -> int:
    """Make values a pinned chunk of their arena."""
    count = values.shape[0]
    start = space.adopt(count)
    space.unannounced.pop()
    run.machine.pins.append(lambda: space.release(Span(space.number, start, count)))
    run.arena(space.number).install(start, values.detach())
    return start


def _stacked(column: Column) -> torch.Tensor:
    return column if isinstance(column, torch.Tensor) else torch.stack(list(column))


def _flattened(column: Column) -> tuple[torch.Tensor, Integers]:
    """All elements of all instances, and the length of each instance."""
    if isinstance(column, torch.Tensor):
        lengths = np.full(column.shape[0], column.shape[1], np.int64)
        return column.flatten(0, 1), lengths
    lengths = np.fromiter((item.shape[0] for item in column), np.int64, len(column))
    return torch.cat(list(column)), lengths


def _load_host(run: Run, kind: object, column: Column, count: int) -> np.ndarray:
    assert isinstance(kind, TensorType)
    if not kind.is_sequence:
        values: np.ndarray = _stacked(column).detach().cpu().numpy()
        return values
    flat, lengths = _flattened(column)
    tables = run.machine.tables
    known = tables.flat.get(kind.dtype, np.empty(0, kind.dtype))
    base = len(known) + np.cumsum(lengths) - lengths
    tables.flat[kind.dtype] = np.concatenate((known, flat.detach().cpu().numpy()))
    first = len(tables.base)
    tables.base = np.concatenate((tables.base, base))
    tables.length = np.concatenate((tables.length, lengths))
    return np.arange(first, first + count)


def _load_slots(run: Run, entry: Input, column: Column, count: int) -> Integers:
    assert entry.slot is not None
    place = run.machine.place(entry.slot)
    if isinstance(place, SequenceTable):
        flat, lengths = _flattened(column)
        start = _adopt(run, place.space, flat)
        numbers = place.create(start + np.cumsum(lengths) - lengths, lengths)
        run.machine.pins.append(lambda: place.add(numbers, -1))
        return numbers
    if isinstance(place, BoxTable):
        return _load_boxes(run, place, list(column), count)
    assert isinstance(place, SlotSpace)
    start = _adopt(run, place, _stacked(column))
    return np.arange(start, start + count)


def _load_boxes(run: Run, table: BoxTable, column: list[torch.Tensor], count: int) -> Integers:
    """Tensors of many shapes: those of one shape go together."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for number, tensor in enumerate(column):
        by_shape.setdefault(tuple(tensor.shape), []).append(number)
    boxes = np.empty(count, np.int64)
    for shape, numbers in by_shape.items():
        space = table.space(shape)
        start = _adopt(run, space, torch.stack([column[number] for number in numbers]))
        boxes[numbers] = table.create(space.number, np.arange(start, start + len(numbers)))
    run.machine.pins.append(lambda: table.add(boxes, -1))
    return boxes
