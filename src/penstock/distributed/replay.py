"""The tape of one rank run again under torch's autograd, together with those of the other ranks.

First every rank learns which of its rows the others need: marks go back over each crossing. Then
rows travel as they did in the call, only those that are needed. Ranks go through all crossings in
one order, forward and back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.ends import CallEnds, Located
from penstock.autodiff.live_rows import Group, Marks, live_rows
from penstock.autodiff.replay import Replay
from penstock.distributed.hops import Hop, HopNode
from penstock.distributed.run import PlacedTapedRun
from penstock.distributed.turns import Crossing, Rows
from penstock.plan.schedule import slots_of

_HOST = torch.device("cpu")


class PlacedReplay(Replay):
    """A replay of this rank's part; `token` has gone through all crossings so far."""

    def __init__(
        self, ends: CallEnds, wanted: Sequence[Located], run: PlacedTapedRun, start: torch.Tensor
    ) -> None:
        self.transport = run.transport
        self.token = start.clone()
        #: For each crossing in which this rank takes part which rows are needed, the first last.
        self.needed: list[npt.NDArray[np.bool_]] = []
        super().__init__(ends, wanted)

    def _find_live(self, present: Marks, *, is_flowing: bool) -> list[list[Group]]:
        def cross(entry: object, present: Marks) -> None:
            if isinstance(entry, Crossing):
                needed = self._ask(entry, present)
                if needed is not None and not is_flowing:
                    self.needed.append(needed)

        return live_rows(self.entries, present, is_flowing=is_flowing, other=cross)

    def _ask(self, crossing: Crossing, present: Marks) -> npt.NDArray[np.bool_] | None:
        """The target tells the source which rows it needs; None if this rank is neither."""
        transport, copy = self.transport, crossing.copy
        if transport.rank == crossing.target:
            where = slots_of(copy.target)
            needed = present[copy.target.arena][where]
            present[copy.target.arena][where] = False
            transport.send(torch.from_numpy(needed), crossing.source, "which rows are needed")
            return needed
        if transport.rank == crossing.source:
            where = slots_of(copy.source)
            room = Rows((len(where),), torch.bool, _HOST, "which rows are needed")
            needed = transport.receive(room, crossing.target).numpy()
            present[copy.source.arena][where[needed]] = True
            return needed
        transport.skip()
        return None

    def carry_out(self, end: int | None = None) -> None:
        """Go through all entries, with the crossings among them."""
        for entry, live, flowing in zip(self.entries, self.live, self.flowing, strict=True):
            if isinstance(entry, Crossing):
                self._cross(entry)
            else:
                self._step(entry, live, flowing)

    def _cross(self, crossing: Crossing) -> None:
        arena = crossing.copy.target.arena
        kind = self.kinds[arena]
        dtype: torch.dtype = getattr(torch, kind.dtype)
        rank, rows = self.transport.rank, None
        is_mine = rank in (crossing.source, crossing.target)
        needed = self.needed.pop() if is_mine else np.zeros(0, np.bool_)
        if rank == crossing.source and needed.any():
            slots = slots_of(crossing.copy.source)[needed]
            rows = self.pieces.take(crossing.copy.source.arena, slots)
        shape = (int(needed.sum()), *kind.shape)
        named = Rows(shape, dtype, torch.device(kind.device), "rows of a replay")
        hop = Hop(self.transport, crossing.source, crossing.target, named)
        self.token, told = HopNode.apply(hop, self.token, rows)  # type: ignore[no-untyped-call]
        if told is not None:
            self.pieces.put(arena, slots_of(crossing.copy.target)[needed], told)
