"""The token machine: rows in, schedule out.

Control moves integers between columns of rows; blocks become launches. The machine is a generator
of instructions: it answers nothing and touches no tensor, and it is sent the values that it asked
to read. Same graph, same inputs, same read values: the same instructions.

Here nodes fire and values travel; which node is next is chosen in `ready_nodes`, and rows begin and
end in `row_lives`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from penstock.ir.graph import Compute, Home
from penstock.plan.call_inputs import Adopted, CallInputs, take_inputs
from penstock.plan.faults import HostOperationError, PlanningError, RowFault
from penstock.plan.forks import fire_join
from penstock.plan.host_code import failing_step
from penstock.plan.host_kernels import quiet
from penstock.plan.linked import Group, LinkedNode
from penstock.plan.loops import RUNNING, resume_iterations
from penstock.plan.outcome import Outcome, outcome_of
from penstock.plan.primitives import FIRE
from penstock.plan.random_keys import mix
from penstock.plan.row_lives import RowLives
from penstock.plan.schedule import Array, Instruction, Integers, Read, pick
from penstock.plan.slots import SlotSpace

Steps = Generator[Instruction, list[Array] | None, None]


class Machine(RowLives):
    """One run of the planner over one batch of instances."""

    def take(self, inputs: CallInputs) -> Adopted:
        """Give the inputs their slots."""
        return take_inputs(self, inputs)

    def outcome(self, adopted: Adopted) -> Outcome:
        """What the plan leaves behind, once all is planned."""
        return outcome_of(self, adopted)

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

    def _admit(self) -> None:
        """Let a few rows in, as nothing else can go on."""
        self.fire(*self._take_few())

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
