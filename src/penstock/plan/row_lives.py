"""How rows begin, enter arms, and end.

A row is made with the rows of what it calls in any case, so that arguments find it as they arrive.
It ends when nothing is to be done for it any more, and lets go of the slots that it keeps; a row
ends once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.faults import too_many_rows
from penstock.ir.graph import Switch
from penstock.plan.faults import RowFault
from penstock.plan.linked import Arm, LinkedContext, LinkedNode
from penstock.plan.primitives import FIRE
from penstock.plan.ready_nodes import ReadyNodes
from penstock.plan.schedule import Array, Integers


class RowLives(ReadyNodes):
    """The rows of all contexts."""

    def fire(self, node: LinkedNode, rows: Integers, arrays: Sequence[Array] | None = None) -> None:
        """Fire a node for rows, now."""
        raise NotImplementedError

    def create(
        self,
        context: int,
        parents: Integers,
        sites: Integers | int,
        instances: Integers,
        depth: Integers | int = 0,
        count: Integers | int = 0,
        key: Array | int = 0,
    ) -> Integers:
        """New rows of a context, and of what they call in any case.

        Arm 0 is entered when its turn comes; the rows of its calls are there before any argument.
        """
        linked = self.linked.contexts[context]
        home = self.rows[context]
        if self.live_rows + len(parents) > self.limits.most_rows + self.count:
            raise self._too_many(linked, sites, instances, depth)
        rows = home.create(len(parents))
        self.live_rows += len(rows)
        self.most_live_rows = max(self.most_live_rows, self.live_rows)
        home.parent[rows], home.site[rows], home.instance[rows] = parents, sites, instances
        home.depth[rows], home.count[rows] = depth, count
        if self.linked.graph.has_random:
            home.key[rows] = key
        home.todo[rows] = linked.arms[0].todo + linked.loose + (linked.start is not None)
        if linked.start is not None:
            self.enqueue(linked.start, rows)
        for node in linked.arms[0].calls:
            FIRE["call"](self, node, rows, None)
        return rows

    def _too_many(
        self,
        linked: LinkedContext,
        sites: Integers | int,
        instances: Integers,
        depth: Integers | int,
    ) -> RowFault:
        context = linked.context
        call = self.linked.calls.get(context.index, {}).get(int(np.ravel(sites)[0]))
        source = context.source if call is None else call.node.source
        rows, most = self.live_rows + len(instances), self.limits.most_rows + self.count
        fault = too_many_rows(context.name, rows, most, int(np.max(depth)))
        return RowFault(fault, int(instances[0]), source)

    def activate(self, context: int, arm: Arm, rows: Integers) -> None:
        """Rows enter an arm."""
        if not len(rows):
            return
        home = self.rows[context]
        if arm is not self.linked.contexts[context].arms[0]:
            home.todo[rows] += arm.todo
            for node in arm.calls:
                FIRE["call"](self, node, rows, None)
        for node in arm.counted:
            self._count_down(node, rows)
        for node in arm.queued:
            self.enqueue(node, rows)
        for node in arm.inline:
            self.fire(node, rows, None)

    def switch(self, node: LinkedNode, rows: Integers, taken: Array) -> None:
        """Send rows to the arms that their index chooses."""
        operation = node.node.operation
        assert isinstance(operation, Switch)
        arms = self.linked.contexts[node.context].arms
        for number, arm in enumerate(operation.arms):
            self.activate(node.context, arms[arm], rows[taken == number])

    def _each_once(self, context: int, rows: Integers) -> Integers:
        """Rows without repetition: the last to leave its mark on a row stands for it.

        The mark stays, so that a row that is looked at again does not end a second time.
        """
        todo = self.rows[context].todo
        marks = np.arange(-len(rows), 0)
        todo[rows] = marks
        chosen: Integers = rows[todo[rows] == marks]
        return chosen

    def _end(self, context: int, rows: Integers) -> tuple[Integers, Integers]:
        home = self.rows[context]
        for place, columns in self.slot_groups[context]:
            slots = home.slots[:, rows] if columns is None else home.slots[columns][:, rows]
            place.add(slots.reshape(-1), -1)
        parents, sites = home.parent[rows], home.site[rows]
        home.end(rows)
        self.live_rows -= len(rows)
        return parents, sites
