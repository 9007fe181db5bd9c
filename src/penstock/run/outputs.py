"""Collects the outputs of a call: ordinary tensors in instance order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.ir.graph import Context, Home, Wire
from penstock.plan.boxes import BoxTable
from penstock.plan.machine import Machine
from penstock.plan.schedule import Integers, Span, pick
from penstock.plan.slots import SequenceTable, SlotSpace, ranges
from penstock.run.arenas import Arena


class OutputColumn:
    """One output of all instances: rows of one tensor, pieces of one tensor, or tensors of many
    shapes.
    """

    def __init__(
        self, values: torch.Tensor | list[torch.Tensor], lengths: list[int] | None = None
    ) -> None:
        self._values = values
        self._lengths = lengths

    def rows(self) -> list[torch.Tensor]:
        """One tensor per instance."""
        if isinstance(self._values, list):
            return self._values
        if self._lengths is None:
            return list(self._values.unbind(0))
        return list(torch.split(self._values, self._lengths))

    @property
    def has_one_shape(self) -> bool:
        """Whether all instances have one shape by type."""
        return self._lengths is None and isinstance(self._values, torch.Tensor)

    def separate_rows(self) -> list[torch.Tensor]:
        """One tensor per instance, each in memory of its own."""
        if isinstance(self._values, list):
            return [values.clone() for values in self._values]
        if self._lengths is None:
            return list(torch.ops.aten.unbind_copy.int(self._values))
        return list(torch.ops.aten.split_with_sizes_copy(self._values, self._lengths))

    def stacked(self) -> torch.Tensor:
        """All instances in one tensor; they must have one shape."""
        if self._lengths is None and isinstance(self._values, torch.Tensor):
            return self._values
        return torch.stack(self.rows())

    def lengths(self) -> list[int] | None:
        """The leading size of each instance, where it is dynamic."""
        return self._lengths


def collect_outputs(
    machine: Machine, arenas: Sequence[Arena], entry: Context
) -> list[OutputColumn]:
    """The columns of the entry's outputs."""
    return [
        _collect(machine, arenas, wire, machine.result_slots[position])
        for position, wire in enumerate(entry.outputs)
    ]


def _collect(
    machine: Machine,
    arenas: Sequence[Arena],
    wire: Wire,
    values: np.ndarray | None,
) -> OutputColumn:
    assert values is not None
    if wire.home is Home.HOST:
        return OutputColumn(torch.from_numpy(values))
    place = machine.place(wire)
    if isinstance(place, SequenceTable):
        lengths = place.length[values]
        slots = ranges(place.base[values], lengths)
        number = place.space.number
        source = pick(number, slots) if len(slots) else Span(number, 0, 0)
        return OutputColumn(arenas[number].gather(source).clone(), lengths.tolist())
    if isinstance(place, BoxTable):
        return OutputColumn(_unbox(place, arenas, values))
    assert isinstance(place, SlotSpace)
    return OutputColumn(arenas[place.number].gather(pick(place.number, values)).clone())


def _unbox(table: BoxTable, arenas: Sequence[Arena], boxes: Integers) -> list[torch.Tensor]:
    rows: dict[int, torch.Tensor] = {}
    owners = table.arena[boxes]
    for arena in np.unique(owners):
        numbers = np.flatnonzero(owners == arena)
        gathered = arenas[arena].gather(pick(int(arena), table.slot[boxes[numbers]])).clone()
        rows.update(zip(numbers.tolist(), gathered.unbind(0)))
    return [rows[number] for number in range(len(boxes))]
