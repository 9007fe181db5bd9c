"""Gates: at run time, too, an iteration begins only when the one that it waits for has ended.

A plan is in order, so planning alone bounds how many iterations are in flight as long as one device
carries it out. Several devices run ahead of each other: a loop with `parallel_iterations` puts a
mark where iterations end, and launches of those that have waited for it say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.schedule import Await, Integers, Mark

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedNode
    from penstock.plan.machine import Machine


class Gates:
    """The marks of one run."""

    def __init__(self) -> None:
        self._last = 0
        #: For each loop the mark that its rows have waited for; 0 for none.
        self._of_rows: dict[int, Integers] = {}

    def open(self, machine: Machine, context: int, resumed: Sequence[Integers]) -> None:
        """Iterations have ended, and these rows of the loop begin."""
        self._last += 1
        machine.out.append(Mark(self._last))
        known = self._of_rows.get(context, np.zeros(0, np.int64))
        if len(known) < machine.rows[context].capacity:
            bigger = np.zeros(machine.rows[context].capacity, np.int64)
            bigger[: len(known)] = known
            known = self._of_rows[context] = bigger
        for rows in resumed:
            known[rows] = self._last

    def hold_back(self, machine: Machine, node: LinkedNode, rows: Integers) -> None:
        """Say what the next launch has to wait for."""
        mark, context = 0, node.context
        while self._last:
            known = self._of_rows.get(context)
            if known is not None:
                mark = max(mark, int(known[rows[rows < len(known)]].max(initial=0)))
            linked = machine.linked.contexts[context].context
            if linked.parent is None:
                if linked.index:
                    mark = self._last  # who has called it differs from row to row
                break
            rows, context = machine.rows[context].parent[rows], linked.parent
        if mark:
            machine.out.append(Await(mark))
