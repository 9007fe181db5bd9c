"""The token machine: rows in, schedule out.

Control moves integers between columns of rows; blocks become launches. The machine is a generator
of instructions: it answers nothing and touches no tensor, and it is sent the values that it asked
to read. Same graph, same inputs, same read values: the same instructions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

import numpy as np

from penstock.faults import too_many_rows
from penstock.ir.graph import Compute, Home, Switch
from penstock.plan.arrays import ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.bundles import Bundles
from penstock.plan.call_inputs import Adopted, CallInputs, take_inputs
from penstock.plan.faults import HostOperationError, PlanningError, RowFault
from penstock.plan.forks import fire_join
from penstock.plan.gates import Gates
from penstock.plan.host_code import Tables, failing_step
from penstock.plan.host_kernels import quiet
from penstock.plan.launches import LaunchPlan
from penstock.plan.limits import Limits
from penstock.plan.linked import Access, Arm, Group, Linked, LinkedContext, LinkedNode
from penstock.plan.loops import RUNNING, resume_iterations
from penstock.plan.outcome import Outcome, outcome_of
from penstock.plan.padding import Padding
from penstock.plan.places import Places, by_place
from penstock.plan.primitives import FIRE
from penstock.plan.random_keys import mix
from penstock.plan.rows import Rows
from penstock.plan.schedule import Array, Instruction, Integers, Read, concatenate, pick
from penstock.plan.slots import SlotSpace

Steps = Generator[Instruction, list[Array] | None, None]


class ShapeOracle(Protocol):
    """Answers, for a block that mixes along dynamic dimensions, how large its results are, and how
    rows of different sizes can run together.
    """

    def shapes(self, block: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each result for one instance, for operands whose dynamic dimensions have
        these sizes.
        """

    def padding(self, block: int, sizes: Mapping[int, Integers]) -> Padding | None:
        """The block's padded form, if it has one, for operands of these sizes."""


class Machine:
    """One run of the planner over one batch of instances."""

    def __init__(
        self,
        linked: Linked,
        limits: Limits,
        shapes: ShapeOracle,
        count: int,
        seed: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.linked = linked
        self.count = count
        self.limits = limits
        self.shapes = shapes
        self.seed = seed
        #: For each instance its number in the map, for random keys.
        self.numbers = range(count) if numbers is None else numbers
        #: Whether any random key has been made.
        self.has_drawn = False
        places = Places()
        self.place = places.place
        self.spaces = places.spaces
        self.array_tables, self.box_tables = places.array_tables, places.box_tables
        for wire in linked.placed:
            self.place(wire)
        #: Padded copies of sequences.
        self.bundles = Bundles(self.spaces)
        self.rows = [self._new_rows(context) for context in linked.contexts]
        self.slot_places = [
            [self.place(wire) for wire in context.slot_wires] for context in linked.contexts
        ]
        self.slot_groups = [by_place(places) for places in self.slot_places]
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
        #: Rows that have got an input that they were made to wait for, by context.
        self.arrived: list[tuple[int, Integers]] = []
        #: Counts that keep fresh values alive until they have arrived.
        self.held: list[Callable[[], None]] = []
        self.out: list[Instruction] = []
        #: The instances of the rows of each launch that is planned and not yet run, for errors.
        self.launched: deque[Integers] = deque()
        #: Rows of loops whose next iteration waits for an older one to end, by context.
        self.waiting: dict[int, list[Integers]] = {
            context.context.index: []
            for context in linked.contexts
            if context.context.parallel_iterations is not None
        }
        self.launch_plans: dict[LinkedNode, LaunchPlan] = {}
        #: Says when iterations may begin, where several devices carry out the plan.
        self.gates: Gates | None = None
        #: What undoes the references of the call's inputs.
        self.pins: list[Callable[[], None]] = []
        self.live_rows = 0
        self.most_live_rows = 0
        self.firings = 0

    def _new_rows(self, context: LinkedContext) -> Rows:
        waits = np.array(context.waits, np.int64)
        children = context.children + (context.context.kind == "loop")  # and the next iteration
        first = max(256, 8 * self.count)
        return Rows(
            tuple(context.host_dtypes), len(context.slot_wires), children, waits, first=first
        )

    def take(self, inputs: CallInputs) -> Adopted:
        """Give the inputs their slots."""
        return take_inputs(self, inputs)

    def outcome(self, adopted: Adopted) -> Outcome:
        """What the plan leaves behind, once all is planned."""
        return outcome_of(self, adopted)

    # ---- running ---------------------------------------------------------------------------------

    def run(self) -> Steps:
        """Plan the entry for all instances."""
        with quiet():
            self._start(self.count)
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
        instances = np.arange(count)
        key = mix(self.seed, np.array(self.numbers)) if self.linked.graph.has_random else 0
        rows = self.create(0, instances, 0, instances, key=key)
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
            elif (opening := self._admissible()) is not None:
                self.expanding.remove(opening)
                self.fire(opening, self._take(opening))
            elif self.data:
                node = min(self.data, key=self._urgency)
                del self.data[node]
                return node
            elif self.expanding:
                self._admit()
            else:
                return None

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

    def _admit(self) -> None:
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
        self.fire(node, rows)

    def _depth(self, node: LinkedNode) -> int:
        """How many calls are around the newest row that waits for a node."""
        return int(self.rows[node.context].depth[self.queues[node][-1][-1]])

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

    def fire(self, node: LinkedNode, rows: Integers, arrays: Sequence[Array] | None = None) -> None:
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
        self._let_arrive()
        self.rows[node.context].todo[rows] -= 1
        self.settle(node.context, rows)
        while self.moves or self.arrived:  # also of iterations that could go on now
            self._let_arrive()
            arrived, self.arrived = self.arrived, []
            for context, below in arrived:
                self.rows[context].todo[below] -= 1
                self.settle(context, below)

    def _let_arrive(self) -> None:
        """Deliver what is on its way; only then may fresh values that nobody keeps be forgotten."""
        while self.moves:
            self.deliver(*self.moves.popleft())
        for release in self.held:
            release()
        self.held.clear()

    def fault(self, node: LinkedNode, rows: Integers, error: HostOperationError) -> RowFault:
        """An error with the instance and the line that it belongs to."""
        row = rows[error.rows[0]] if len(error.rows) else rows[0]
        instance = int(self.rows[node.context].instance[row])
        operation, source = node.node.operation, node.node.source
        if isinstance(operation, Compute) and (step := failing_step(error)) is not None:
            source = operation.steps[step].source or source
        return RowFault(error.fault, instance, source)

    # ---- values ----------------------------------------------------------------------------------

    def fetch(
        self, node: LinkedNode, position: int, rows: Integers, arrays: Sequence[Array] | None
    ) -> Array:
        """The values of one input of a node, for rows of its context."""
        access = node.access[position]
        if arrays is not None and access.field is not None:
            return arrays[access.field]
        return self.look_up(node.context, access, rows)

    def look_up(self, context: int, access: Access, rows: Integers) -> Array:
        """Values that rows of a context keep, or that rows above them or instances do."""
        home = self.rows[context]
        if access.input is not None:
            source = (self.input_host if access.is_host else self.input_slots)[access.input]
            assert source is not None
            return source[home.instance[rows]]
        for above in access.above:
            rows = home.parent[rows]
            home = self.rows[above]
        column = access.column
        return home.host[column][rows] if access.is_host else home.slots[column][rows]

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
        if group.is_loose:
            self.arrived.append((group.context, rows))
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

    def settle(self, context: int, rows: Integers) -> None:
        """End the rows that wait for nothing any more, and then those that waited for them."""
        work = [(context, rows)]
        while work:
            context, rows = work.pop()
            ended = rows[self.rows[context].todo[rows] == 0]
            if not len(ended):
                continue
            parents, sites = self._end(context, self._each_once(context, ended))
            if context in self.waiting:
                going = resume_iterations(self, context, parents[sites == RUNNING])
                work.extend((context, rows) for rows in going)
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

    def audit(self) -> dict[str, int]:
        """What is still referred to once the call gives up its inputs and outputs; all zero, or
        there is a leak.
        """
        for release in self.pins:
            release()
        for wire, values in zip(self.linked.contexts[0].context.outputs, self.result_slots):
            if wire.home is Home.SLOT and values is not None:
                self.place(wire).add(values, -1)
        tables: list[ArrayTable | BoxTable] = [
            *self.array_tables.values(),
            *self.box_tables.values(),
        ]
        return {
            "rows": self.live_rows,
            "tables": sum(table.live() for table in tables),
            "slots": sum(space.live() for space in self.spaces),
        }

    # ---- reading back ----------------------------------------------------------------------------

    def _read_all(self) -> Steps:
        """Read what all waiting read nodes ask for, together."""
        nodes = [node for node in self.queues if node.kind == "read" and self.queues[node]]
        nodes.sort(key=lambda node: node.number)
        taken = []
        for node in nodes:
            self.data.pop(node, None)
            rows = self._take(node)
            taken.append((node, rows, self.fetch(node, 0, rows, None)))
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
