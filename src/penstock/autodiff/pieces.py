"""The values of slots while a tape is replayed: each is a row of a piece, which torch's autograd
knows. A piece of which no slot has a row any more is let go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.plan.schedule import Integers


class Pieces:
    """Who made the value in each slot: the number of a piece and the row in it."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self.piece = [np.full(capacity, -1, np.int64) for capacity in capacities]
        self.row = [np.zeros(capacity, np.int64) for capacity in capacities]
        #: The pieces that some slot has a row of, by their numbers, and of how many.
        self.tensors: dict[int, torch.Tensor] = {}
        self._uses: dict[int, int] = {}
        self._count = 0

    def put(self, arena: int, slots: Integers, values: torch.Tensor) -> None:
        """The values of slots, one row each."""
        number, self._count = self._count, self._count + 1
        if len(slots):
            self.tensors[number] = values
            self._own(arena, slots, np.full(len(slots), number))
            self.row[arena][slots] = np.arange(len(slots))

    def copy(self, arena: int, sources: Integers, targets: Integers) -> None:
        """Slots get the values of other slots."""
        rows = self.row[arena][sources]
        self._own(arena, targets, self.piece[arena][sources])
        self.row[arena][targets] = rows

    def _own(self, arena: int, slots: Integers, owners: Integers) -> None:
        """Slots get rows of pieces; those of which no slot has a row are let go."""
        before = self.piece[arena][slots]
        self.piece[arena][slots] = owners
        for number, count in _counted(owners):
            self._uses[number] = self._uses.get(number, 0) + count
        for number, count in _counted(before):
            self._uses[number] -= count
            if not self._uses[number]:
                del self._uses[number], self.tensors[number]

    def take(self, arena: int, slots: Integers) -> torch.Tensor:
        """The values of slots, connected to the pieces they come from."""
        owners, rows = self.piece[arena][slots], self.row[arena][slots]
        distinct, which = np.unique(owners, return_inverse=True)
        parts = [self.tensors[owner] for owner in distinct]
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        index = torch.from_numpy(starts[which.reshape(-1)] + rows)
        return joined.index_select(0, index.to(joined.device))


def _counted(owners: Integers) -> list[tuple[int, int]]:
    """How many slots have rows of each piece; those that have none do not count."""
    distinct, counts = np.unique(owners, return_counts=True)
    found = zip(distinct.tolist(), counts.tolist(), strict=True)
    return [(number, count) for number, count in found if number >= 0]
