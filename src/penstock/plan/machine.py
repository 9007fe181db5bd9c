"""The token machine: rows in, schedule out.

Control moves integers between columns of rows; blocks become launches. The machine is a generator of instructions: it
answers nothing and touches no tensor, and it is sent the values that it asked to read. Same graph, same inputs, same
read values: the same instructions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import numpy as np

from penstock.ir.graph import Home, Switch, Wire
from penstock.ir.types import ArrayType, TensorType
from penstock.plan.arrays import ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.faults import PlanningError, RowFault
from penstock.plan.host_code import Tables
from penstock.plan.host_kernels import HostOperationError, quiet
from penstock.plan.limits import Limits
from penstock.plan.link import Arm, Group, Linked, LinkedContext, LinkedNode
from penstock.plan.primitives import FIRE, fire_join
from penstock.plan.rows import Rows
from penstock.plan.schedule import Array, Instruction, Integers, Kind, Read, concatenate, pick
from penstock.plan.slots import SequenceTable, SlotSpace

#: Where the values of a slot wire are counted.
Place = SlotSpace | SequenceTable | ArrayTable | BoxTable

Steps = Generator[Instruction, list[Array] | None, None]


class ShapeOracle(Protocol):
    """Answers, for a block that mixes along dynamic dimensions, how large its results are."""

    def shapes(self, block: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each result for one instance, for operands whose dynamic dimensions have these sizes."""


class Machine:
    """One run of the planner over one batch of instances."""

    def __init__(self, linked: Linked, limits: Limits, shapes: ShapeOracle, seed: int = 0) -> None:
        self.linked = linked
        self.limits = limits
        self.shapes = shapes
        self.seed = seed
        self.spaces: list[SlotSpace] = []
        self.space_of: dict[Kind, SlotSpace] = {}
        self.array_tables: dict[int, ArrayTable] = {}
        self.box_tables: dict[tuple[str, int, str], BoxTable] = {}
        self.places: dict[Wire, Place] = {}
        self.rows = [self._new_rows(context) for context in linked.contexts]
        self.slot_places = [
            [self.place(wire) for wire in context.slot_wires] for context in linked.contexts
        ]
        self.tables = Tables()
        #: Host values (or table numbers) and slots of each graph input, by instance.
        self.input_host: list[Array | None] = [None] * len(linked.graph.inputs)
        self.input_slots: list[Integers | None] = [None] * len(linked.graph.inputs)
        entry = linked.contexts[0].context
        self.result_slots: list[Array | None] = [None] * len(entry.outputs)
        self.queues: dict[LinkedNode, list[Integers]] = {}
        self.control: deque[LinkedNode] = deque()
        self.expanding: deque[LinkedNode] = deque()
        self.data: dict[LinkedNode, None] = {}
        #: Values on their way to rows above; a list, so that long chains of returns do not nest.
        self.moves: deque[tuple[Group, Integers, Sequence[Array]]] = deque()
        #: Counts that keep fresh values alive until they have arrived.
        self.held: list[Callable[[], None]] = []
        self.out: list[Instruction] = []
        self.live_rows = 0
        self.firings = 0

    # ---- places ----------------------------------------------------------------------------------

    def space(self, kind: Kind) -> SlotSpace:
        """The arena for values of a kind."""
        if kind not in self.space_of:
            self.space_of[kind] = made = SlotSpace(len(self.spaces), kind)
            self.spaces.append(made)
        return self.space_of[kind]

    def place(self, wire: Wire) -> Place:
        """Where the values of a slot wire live."""
        if wire not in self.places:
            self.places[wire] = self._place_of(wire.type)
        return self.places[wire]

    def _place_of(self, kind: TensorType | ArrayType) -> Place:
        if isinstance(kind, ArrayType):
            inner = self._place_of(kind.element or TensorType("unknown"))
            assert not isinstance(inner, ArrayTable)
            return self.array_tables.setdefault(id(inner), ArrayTable(inner))
        if kind.is_sequence:
            return self.space(_kind(kind.element)).sequences
        if kind.is_dynamic:
            return self._boxes(kind)
        return self.space(_kind(kind))

    def _boxes(self, kind: TensorType) -> BoxTable:
        def space(shape: tuple[int, ...]) -> SlotSpace:
            return self.space(Kind(kind.dtype, shape, kind.device))

        key = (kind.dtype, len(kind.shape), kind.device)
        return self.box_tables.setdefault(key, BoxTable(space, self.spaces))

    def _new_rows(self, context: LinkedContext) -> Rows:
        waits = np.array(context.waits, np.int64)
        children = context.children + (context.context.kind == "loop")  # and the next iteration
        return Rows(tuple(context.host_dtypes), len(context.slot_wires), children, waits)

    # ---- running ---------------------------------------------------------------------------------

    def run(self, count: int) -> Steps:
        """Plan the entry for `count` instances."""
        with quiet():
            self._start(count)
        while True:
            with quiet():
                node = self._advance()
            yield from self._flush()
            if node is None:
                break
            if node.kind == "read":
                yield from self._read_all()
            else:
                with quiet():
                    self.fire(node, self._take(node))
                yield from self._flush()
        if self.live_rows:
            raise PlanningError(f"{self.live_rows} rows wait for values that never come")

    def _start(self, count: int) -> None:
        entry = self.linked.contexts[0].context
        for position, wire in enumerate(entry.outputs):
            dtype = "int64" if wire.home is Home.SLOT else wire.type.dtype  # type: ignore[union-attr]
            self.result_slots[position] = np.zeros(count, dtype)
        rows = self.create(0, np.arange(count), np.zeros(count, np.int64), np.arange(count))
        self.settle(0, rows)

    def _flush(self) -> Steps:
        for space in self.spaces:
            if space.unannounced:
                yield from space.unannounced
                space.unannounced = []
        if self.out:
            out, self.out = self.out, []
            yield from out

    def _advance(self) -> LinkedNode | None:
        """Fire control until only data is ready; the data node that comes next."""
        while True:
            if self.control:
                node = self.control.popleft()
                self.fire(node, self._take(node))
            elif self.expanding and self.live_rows < self.limits.live_rows:
                node = self.expanding.popleft()
                self.fire(node, self._take(node))
            elif self.data:
                node = min(self.data, key=self._urgency)
                del self.data[node]
                return node
            elif self.expanding:
                self._admit()
            else:
                return None

    def _urgency(self, node: LinkedNode) -> tuple[int, int, int]:
        width = sum(map(len, self.queues[node]))
        return node.rank, -width, node.number

    def _admit(self) -> None:
        """Over the bound: a few rows of the newest calls, or of the oldest iterations."""
        node = self.expanding[-1]
        queue = self.queues[node]
        is_loop = self.linked.contexts[node.context].context.kind == "loop"
        rows = queue.pop(0 if is_loop else -1)
        most = self.limits.admitted_rows
        if len(rows) > most and is_loop:
            queue.insert(0, rows[most:])
            rows = rows[:most]
        elif len(rows) > most:
            queue.append(rows[:-most])
            rows = rows[-most:]
        if not queue:
            self.expanding.remove(node)
        self.fire(node, rows)

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

    def fire(
        self, node: LinkedNode, rows: Integers, arrays: Sequence[Array] | None = None
    ) -> None:
        """Fire a node for rows; a queued one counts as done once its values have arrived."""
        self.firings += 1
        try:
            if node.kind == "start":
                self.activate(node.context, self.linked.contexts[node.context].arms[0], rows)
            else:
                FIRE[node.kind](self, node, rows, arrays)
        except HostOperationError as error:
            raise self.fault(node, rows, error) from None
        if not node.is_inline:
            self._complete(node, rows)

    def _complete(self, node: LinkedNode, rows: Integers) -> None:
        while self.moves:
            self.deliver(*self.moves.popleft())
        for release in self.held:
            release()
        self.held.clear()
        self.rows[node.context].todo[rows] -= 1
        self.settle(node.context, rows)

    def fault(self, node: LinkedNode, rows: Integers, error: HostOperationError) -> RowFault:
        """An error with the instance and the line that it belongs to."""
        row = rows[error.rows[0]] if len(error.rows) else rows[0]
        instance = int(self.rows[node.context].instance[row])
        return RowFault(error.reason, error.builtin, instance, node.node.source)

    # ---- values ----------------------------------------------------------------------------------

    def fetch(
        self, node: LinkedNode, wire: Wire, rows: Integers, arrays: Sequence[Array] | None
    ) -> Array:
        """The values of a wire for rows of the node's context."""
        if wire.input is not None:
            source = (self.input_host if wire.home is Home.HOST else self.input_slots)[wire.input]
            assert source is not None
            return source[self.rows[node.context].instance[rows]]  # type: ignore[no-any-return]
        if arrays is not None and node.trigger is not None and wire in node.trigger.wires:
            return arrays[node.trigger.wires.index(wire)]
        context = node.context
        while context != wire.context:
            rows = self.rows[context].parent[rows]
            parent = self.linked.contexts[context].context.parent
            assert parent is not None
            context = parent
        column = self.linked.columns[wire]
        home = self.rows[context]
        return home.host[column][rows] if wire.home is Home.HOST else home.slots[column][rows]  # type: ignore[no-any-return]

    def deliver(self, group: Group, rows: Integers, arrays: Sequence[Array]) -> None:
        """Values arrive: store what is read later, set off what waits for them."""
        if not len(rows):
            return
        home = self.rows[group.context]
        for position, column in group.host_stores:
            home.host[column][rows] = arrays[position]
        for position, column in group.slot_stores:
            home.slots[column][rows] = arrays[position]
            self.slot_places[group.context][column].add(arrays[position], 1)
        for node in group.counted:
            self._count_down(node, rows)
        for node in group.queued:
            self.enqueue(node, rows)
        for node in group.inline:
            self.fire(node, rows, arrays)
        if group.arguments or group.merges or group.next_values:
            self._pass_on(group, rows, arrays)
        if group.returns or group.exits:
            self._pass_back(group, rows, arrays)
        for position, field in group.results:
            self._finish(position, rows, arrays[field])
        for position, field in group.joins:
            self._join(group.context, position, rows, arrays[field])

    def _count_down(self, node: LinkedNode, rows: Integers) -> None:
        pending = self.rows[node.context].pending[node.counter]
        pending[rows] -= 1
        ready = rows[pending[rows] == 0]
        if len(ready):
            self.enqueue(node, ready)

    def _pass_on(self, group: Group, rows: Integers, arrays: Sequence[Array]) -> None:
        for target, fields in group.merges:
            self.deliver(target, rows, [arrays[field] for field in fields])
        for child, target, fields in group.arguments:
            below = self.rows[group.context].children[child][rows]
            self.deliver(target, below, [arrays[field] for field in fields])
        for target, fields in group.next_values:
            below = self.rows[group.context].children[-1][rows]
            self.deliver(target, below, [arrays[field] for field in fields])

    def _pass_back(self, group: Group, rows: Integers, arrays: Sequence[Array]) -> None:
        home = self.rows[group.context]
        above = home.parent[rows]
        for target, fields in group.exits:
            self.moves.append((target, above, [arrays[field] for field in fields]))
        if len(group.returns) == 1:
            ((target, fields),) = group.returns.values()
            self.moves.append((target, above, [arrays[field] for field in fields]))
            return
        sites = home.site[rows]
        for site, (target, fields) in group.returns.items():
            mine = np.flatnonzero(sites == site)
            if len(mine):
                self.moves.append((target, above[mine], [arrays[f][mine] for f in fields]))

    def _finish(self, position: int, rows: Integers, values: Array) -> None:
        results = self.result_slots[position]
        assert results is not None
        results[self.rows[0].instance[rows]] = values
        wire = self.linked.contexts[0].context.outputs[position]
        if wire.home is Home.SLOT:
            self.place(wire).add(values, 1)

    def _join(self, context: int, position: int, rows: Integers, slots: Integers) -> None:
        fire_join(self, self.linked.contexts[context], position, rows, slots)

    # ---- rows ------------------------------------------------------------------------------------

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
        """New rows of a context; arm 0 is entered when their turn comes."""
        linked = self.linked.contexts[context]
        home = self.rows[context]
        rows = home.create(len(parents))
        self.live_rows += len(rows)
        if self.live_rows > self.limits.most_rows:
            raise self._too_many(linked, f"{self.live_rows} live rows")
        home.parent[rows], home.site[rows], home.instance[rows] = parents, sites, instances
        home.depth[rows], home.count[rows] = depth, count
        if self.linked.graph.has_random:
            home.key[rows] = key
        home.todo[rows] = linked.arms[0].todo + (linked.start is not None)
        if linked.start is not None:
            self.enqueue(linked.start, rows)
        return rows

    def _too_many(self, linked: LinkedContext, what: str) -> RowFault:
        reason = f"recursion without end: {what} in {linked.context.name}"
        return RowFault(reason, RecursionError, 0, linked.context.source)

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

    def settle(self, context: int, rows: Integers) -> None:
        """End the rows that wait for nothing any more, and then those that waited for them."""
        work = [(context, rows)]
        while work:
            context, rows = work.pop()
            ended = rows[self.rows[context].todo[rows] == 0]
            if not len(ended):
                continue
            parents, sites = self._end(context, np.unique(ended) if len(ended) > 1 else ended)
            linked = self.linked.contexts[context].context
            if linked.kind == "function":
                for site, call in self.linked.calls.get(context, {}).items():
                    callers = parents[sites == site]
                    if len(callers):
                        np.subtract.at(self.rows[call.context].todo, callers, 1)
                        work.append((call.context, callers))
            elif linked.parent is not None:
                np.subtract.at(self.rows[linked.parent].todo, parents, 1)
                work.append((linked.parent, parents))

    def _end(self, context: int, rows: Integers) -> tuple[Integers, Integers]:
        home = self.rows[context]
        for column, place in enumerate(self.slot_places[context]):
            place.add(home.slots[column][rows], -1)
        parents, sites = home.parent[rows], home.site[rows]
        home.end(rows)
        self.live_rows -= len(rows)
        return parents, sites

    # ---- reading back ----------------------------------------------------------------------------

    def _read_all(self) -> Steps:
        """Read what all waiting read nodes ask for, together."""
        nodes = [node for node in self.queues if node.kind == "read" and self.queues[node]]
        nodes.sort(key=lambda node: node.number)
        taken = []
        for node in nodes:
            self.data.pop(node, None)
            rows = self._take(node)
            taken.append((node, rows, self.fetch(node, node.node.inputs[0], rows, None)))
        sources = []
        for node, _, slots in taken:
            place = self.place(node.node.inputs[0])
            assert isinstance(place, SlotSpace)
            sources.append(pick(place.number, slots))
        values = yield Read(tuple(sources))
        assert values is not None
        with quiet():
            for (node, rows, _), array in zip(taken, values, strict=True):
                assert node.output is not None
                self.firings += 1
                self.deliver(node.output, rows, [array])
                self._complete(node, rows)


def _kind(kind: TensorType) -> Kind:
    return Kind(kind.dtype, kind.shape, kind.device)  # type: ignore[arg-type]
