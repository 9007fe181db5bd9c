"""Collects the outputs of a call: ordinary tensors in instance order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from penstock.plan.outcome import InBoxes, InRuns, OnHost, Outcome, Where
from penstock.plan.schedule import Picks, Span, pick
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
            pieces = self._values.unbind(0)
        else:
            pieces = torch.split(self._values, self._lengths)
        return [piece.data for piece in pieces]  # no views: each may be changed by itself

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


#: The arena of a number.
FindArena = Callable[[int], Arena]


def collect_outputs(outcome: Outcome, arena: FindArena) -> list[OutputColumn]:
    """The columns of the entry's outputs."""
    return [_collect(where, arena) for where in outcome.results]


def _collect(where: Where | OnHost, arena: FindArena) -> OutputColumn:
    if isinstance(where, OnHost):
        return OutputColumn(torch.from_numpy(where.values.copy()))
    if isinstance(where, InBoxes):
        return OutputColumn(_unbox(where, arena))
    number, slots = where.of(slice(None))
    source = pick(number, slots) if len(slots) else Span(number, 0, 0)
    lengths = where.lengths.tolist() if isinstance(where, InRuns) else None
    return OutputColumn(_own(arena(number).gather(source), source), lengths)


def _own(values: torch.Tensor, source: Span | Picks) -> torch.Tensor:
    """Values in memory of their own; those that were picked together are."""
    return values.clone() if isinstance(source, Span) else values


def _unbox(boxes: InBoxes, arena: FindArena) -> list[torch.Tensor]:
    rows: dict[int, torch.Tensor] = {}
    for owner in np.unique(boxes.arenas).tolist():
        numbers = np.flatnonzero(boxes.arenas == owner)
        gathered = arena(owner).gather(pick(owner, boxes.slots[numbers])).clone()
        rows.update(zip(numbers.tolist(), (piece.data for piece in gathered.unbind(0))))
    return [rows[number] for number in range(len(boxes.slots))]
