"""Memory policies in several processes: each rank keeps its own rows inside its own budget.

What becomes of a rank's pages changes no message. Rows that have come from another rank are not
asked for again: a segment that runs again has kept those that it reads, and sends nothing.
"""

from __future__ import annotations

from penstock.autodiff.bounded.program_runs import BoundedRun
from penstock.autodiff.bounded.reversal import BoundedReversal
from penstock.distributed.queued import QueuedPlacedTapedRun
from penstock.distributed.queued_reversal import QueuedPlacedReversal
from penstock.distributed.reversal import PlacedReversal
from penstock.distributed.run import PlacedTapedRun
from penstock.distributed.turns import Cross


class BoundedPlacedRun(BoundedRun, PlacedTapedRun):
    """This rank's part of a run, which follows a memory policy."""

    def _cross(self, turn: Cross) -> None:
        super()._cross(turn)
        if turn.put is not None:
            self.strategy.received(self, turn.crossing.copy.target)

    def _spread_results(self) -> None:
        self.end()  # results of other ranks come where inputs were
        super()._spread_results()


class BoundedPlacedReversal(BoundedReversal, PlacedReversal):
    """One backward pass over the tape of this rank's part, whose pages come when wanted."""

    taped: BoundedPlacedRun


def reversal_kind(run: PlacedTapedRun) -> type[PlacedReversal]:
    """What goes backward through the tape of a run."""
    if isinstance(run, BoundedPlacedRun):
        return BoundedPlacedReversal
    return QueuedPlacedReversal if isinstance(run, QueuedPlacedTapedRun) else PlacedReversal
