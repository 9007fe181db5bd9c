"""One backward pass over a rank's own part of a tape.

Rows that were sent have their gradients sent back, with a mark for each that has one; what comes
back is added where the rows were made. Messages have the sizes of the forward pass, whatever has
gradients: so all ranks know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.autodiff.reverse import Reversal
from penstock.autodiff.way_back import WayBack
from penstock.distributed.messages import aligned
from penstock.distributed.run import PlacedTapedRun
from penstock.distributed.turns import Crossing, Rows
from penstock.plan.schedule import slot_count, slots_of


class PlacedReversal(Reversal):
    """One backward pass over the tape of this rank's part."""

    taped: PlacedTapedRun
    goes_straight = False

    def run(self, entries: Sequence[Any]) -> WayBack | None:
        """Go through a tape from its end; the way is known only as gradients arrive."""
        for entry in reversed(entries):
            if isinstance(entry, Crossing):
                self._return(entry)
            else:
                self.run_step(entry, self._reverse(entry))
        self.flush()
        return None

    def _return(self, crossing: Crossing) -> None:
        """Gradients of rows go back to where the rows came from."""
        transport = self.taped.transport
        rows = self.rows_back(crossing)
        if rows is None:
            return
        if transport.rank == crossing.target:
            transport.send(self.taking(crossing)(), crossing.source, rows.what)
        elif transport.rank == crossing.source:
            self.giving(crossing, transport.receive(rows, crossing.target))()
        else:
            transport.skip()

    def rows_back(self, crossing: Crossing) -> Rows | None:
        """The message of gradients for one of rows; None for rows that have none."""
        kind = self.extents[crossing.copy.target.arena][0]
        dtype: torch.dtype = getattr(torch, kind.dtype)
        if not (dtype.is_floating_point or dtype.is_complex):
            return None
        count = slot_count(crossing.copy.target)
        size = aligned(count) + count * int(np.prod(kind.shape)) * dtype.itemsize
        return Rows((size,), torch.uint8, torch.device(kind.device), "gradients")

    def taking(self, crossing: Crossing) -> Callable[[], torch.Tensor]:
        """How to find gradients of rows that were received, each with a mark; they are not there
        any more.
        """
        target = crossing.copy.target
        arena, slots = self.arena(target.arena), slots_of(target)
        marks = np.zeros(aligned(len(slots)), np.uint8)
        marks[: len(slots)] = arena.present[slots]
        gather = arena.prepare_gather(slots)
        arena.clear(slots)

        def take() -> torch.Tensor:
            rows = gather(arena).contiguous().reshape(-1).view(torch.uint8)
            return torch.cat((torch.from_numpy(marks).to(rows.device), rows))

        return take

    def giving(self, crossing: Crossing, told: torch.Tensor) -> Callable[[], None]:
        """How to add the gradients of a message where the rows were made."""
        source = crossing.copy.source
        arena, slots = self.arena(source.arena), slots_of(source)
        marks = told[: len(slots)].cpu().numpy().astype(np.bool_)
        if not marks.any():
            return lambda: None
        rows = told[aligned(len(slots)) :].view(arena.values.dtype)
        rows = rows.view(len(slots), *arena.kind.shape)
        held = rows if marks.all() else rows[torch.from_numpy(marks).to(rows.device)]
        return partial(arena.prepare_accumulate(slots[marks]), arena, held)
