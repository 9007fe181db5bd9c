"""Collects the outputs of a call: ordinary tensors in instance order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.ir.graph import Context, Home, Wire
from penstock.plan.machine import Machine
from penstock.plan.schedule import Span, pick
from penstock.plan.slots import SequenceTable, SlotSpace, ranges
from penstock.run.arenas import Arena


class OutputColumn:
    """One output of all instances: rows of one tensor, or pieces of one tensor."""

    def __init__(self, values: torch.Tensor, lengths: list[int] | None = None) -> None:
        self._values = values
        self._lengths = lengths

    def rows(self) -> list[torch.Tensor]:
        """One tensor per instance."""
        if self._lengths is None:
            return list(self._values.unbind(0))
        return list(self._values.split(self._lengths))

    def stacked(self) -> torch.Tensor:
        """All instances in one tensor; they must have one shape."""
        if self._lengths is None:
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
    values: np.ndarray | None,  # type: ignore[type-arg]
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
    assert isinstance(place, SlotSpace)
    return OutputColumn(arenas[place.number].gather(pick(place.number, values)).clone())
