"""Which node fires next, and for which rows.

Control goes first, as it only moves integers. Then nodes that create rows, as far as the bounds
allow; then data, lowest rank first, so that blocks wait for all rows they can get. Over the bounds
a few rows at a time are let in, of the deepest calls or of the oldest iterations, so that rows end.
"""

from __future__ import annotations

from penstock.plan.linked import LinkedNode
from penstock.plan.machine_state import MachineState
from penstock.plan.schedule import Integers, concatenate


class ReadyNodes(MachineState):
    """Nodes with the rows that wait for them to fire."""

    def enqueue(self, node: LinkedNode, rows: Integers) -> None:
        """Let a node fire for rows when its turn comes."""
        queue = self.queues.setdefault(node, [])
        if not queue:
            if node.is_data:
                self.data[node] = None
            elif node.is_expanding:
                self.expanding.append(node)
            else:
                self.control.append(node)
        queue.append(rows)

    def _take(self, node: LinkedNode) -> Integers:
        queue, self.queues[node] = self.queues[node], []
        return concatenate(queue)

    def _count_down(self, node: LinkedNode, rows: Integers) -> None:
        pending = self.rows[node.context].pending[node.counter]
        pending[rows] -= 1
        ready = rows[pending[rows] == 0]
        if len(ready):
            self.enqueue(node, ready)

    def _admissible(self) -> LinkedNode | None:
        """The first node that may create rows without going over a bound, loops being entered last.

        A loop is entered once no block of lower rank is ready: what that block makes may enter too,
        and blocks of the loop would have to wait for it anyway.
        """
        if self.live_rows >= self.limits.live_rows:
            return None
        entering: list[LinkedNode] = []
        for node in self.expanding:
            is_loop = self.linked.contexts[node.context].context.kind == "loop"
            if not is_loop or self.rows[node.context].live < self.limits.loop_rows:
                if node.kind != "enter":
                    return node
                entering.append(node)
        lowest = min((node.rank for node in self.data), default=None)
        return next((node for node in entering if lowest is None or node.rank <= lowest), None)

    def _urgency(self, node: LinkedNode) -> tuple[int, int, int]:
        width = sum(map(len, self.queues[node]))
        return node.rank, -width, node.number

    def _take_few(self) -> tuple[LinkedNode, Integers]:
        """Over the bound: a few rows of the deepest calls, or of the oldest iterations."""
        node = max(reversed(self.expanding), key=self._depth)
        queue = self.queues[node]
        is_loop = self.linked.contexts[node.context].context.kind == "loop"
        rows = queue.pop(0 if is_loop else -1)
        # ever fewer towards the end, so that what is deep but not endless still finds room
        room = (self.limits.most_rows - self.live_rows) >> 10
        most = max(1, min(self.limits.admitted_rows, room))
        if len(rows) > most and is_loop:
            queue.insert(0, rows[most:])
            rows = rows[:most]
        elif len(rows) > most:
            queue.append(rows[:-most])
            rows = rows[-most:]
        if not queue:
            self.expanding.remove(node)
        return node, rows

    def _depth(self, node: LinkedNode) -> int:
        """How many calls are around the newest row that waits for a node."""
        return int(self.rows[node.context].depth[self.queues[node][-1][-1]])
