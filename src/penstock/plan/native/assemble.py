"""Assembles a linked graph: what an event sets off becomes one straight piece of code.

There is a piece for each queued node and for each group that moves bring values to. Inside a piece
everything that happens at once is written out, in the order in which the plain machine does it:
stores, arrivals, inline nodes, merges, arguments. Only returns and exits go through a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from penstock.ir.graph import Block, Call, Compute, Enter, Home, Primitive, Switch, Wire
from penstock.ir.types import TensorType
from penstock.plan.host_code import dtype_of
from penstock.plan.linked import Arm, Group, Linked, LinkedNode
from penstock.plan.native import opcodes as op
from penstock.plan.native.layout import launch_specification, padded_specification
from penstock.plan.native.program import NativeProgram, NotNative
from penstock.plan.native.value_code import Fields, ValueCode


def assemble(linked: Linked) -> NativeProgram:
    """The program of a linked graph; `NotNative` where it holds what the kernel cannot do."""
    return _Assembler(linked).assemble()


class _Assembler(ValueCode):
    """One assembly under way."""

    def __init__(self, linked: Linked) -> None:
        super().__init__(linked)
        #: Where the pieces of groups begin, and groups whose pieces are still to be written.
        self.groups: dict[int, int] = {}
        self.waiting: dict[int, Group] = {}

    def assemble(self) -> NativeProgram:
        """All pieces."""
        segments = [self._piece(lambda n=node: self._fire_queued(n)) for node in self.layout.queued]  # type: ignore[misc]
        segments.append(self._piece(self._begin))
        while self.waiting:
            number, group = self.waiting.popitem()
            fields = range(op.ROWS_REGISTER + 1, op.ROWS_REGISTER + 1 + len(group.wires))
            self.groups[number] = self._piece(
                lambda g=group, f=fields: self._deliver(g, op.ROWS_REGISTER, f),  # type: ignore[misc]
                len(fields),
            )
        return self.layout.program(
            self.code, self.lists, segments, self.groups, list(self.constants), self.registers
        )

    def _deliver(self, group: Group, rows: int, fields: Sequence[int]) -> None:
        """Values arrive, as in `Machine.deliver`."""
        layout = self.layout
        if group.joins:
            raise NotNative("a for-each")
        with self._unless_empty(rows):
            for position, column in group.host_stores:
                self._do(op.STORE, rows, layout.host(group.context, column), fields[position])
            for position, column in group.slot_stores:
                wire = self.linked.contexts[group.context].slot_wires[column]
                offset, place = layout.slot(group.context, column), layout.counted(wire)
                self._do(op.STORE_SLOT, rows, offset, fields[position], place)
            if group.is_loose:
                self._do(op.LOOSE, rows)
            for node in group.counted:
                self._count_down(node, rows)
            for node in group.queued:
                self._do(op.ENQUEUE, rows, layout.number[node])
            self._fire_inline(group.inline, rows, fields)
            self._pass_on(group, rows, fields)
            self._pass_back(group, rows, fields)
            for position, field in group.results:
                wire = self.linked.contexts[0].context.outputs[position]
                self._do(op.FINISH, rows, position, fields[field], layout.counted(wire))

    def _count_down(self, node: LinkedNode, rows: int, arrivals: int = 1) -> None:
        assert node.counter is not None
        offset = self.layout.pending(node.context, node.counter)
        self._do(op.COUNT_DOWN, rows, offset, self.layout.number[node], arrivals, results=1)

    def _pass_on(self, group: Group, rows: int, fields: Sequence[int]) -> None:
        for target, taken in group.merges:
            self._deliver(target, rows, [fields[field] for field in taken])
        children = [*group.arguments, *((-1, *move) for move in group.next_values)]
        for child, target, taken in children:
            below = self._column(rows, self.layout.child(group.context, child))
            self._deliver(target, below, [fields[field] for field in taken])

    def _pass_back(self, group: Group, rows: int, fields: Sequence[int]) -> None:
        if not group.exits and not group.returns:
            return
        above = self._column(rows, op.PARENT)
        for target, taken in group.exits:
            self._move(target, above, [fields[field] for field in taken])
        if len(group.returns) == 1:
            ((target, taken),) = group.returns.values()
            self._move(target, above, [fields[field] for field in taken])
            return
        for site, (target, taken) in group.returns.items():
            mine = self._do(op.AT_SITE, rows, site, results=1)
            with self._unless_empty(mine):
                chosen = [self._do(op.TAKE, mine, fields[f], results=1) for f in taken]
                self._move(target, self._do(op.TAKE, mine, above, results=1), chosen)

    def _move(self, group: Group, rows: int, fields: Sequence[int]) -> None:
        if group.number not in self.groups:
            self.waiting[group.number] = group
        self._do(op.MOVE, rows, group.number, self._list(fields), len(fields))

    def _begin(self) -> None:
        """What is set off by the rows of all instances."""
        self._set_off(0, op.ROWS_REGISTER)

    def _fire_queued(self, node: LinkedNode) -> None:
        rows = op.ROWS_REGISTER
        if node.kind == "start":
            self._activate(node.context, self.linked.contexts[node.context].arms[0], rows)
        elif node.kind == "block":
            self._launch(node, rows)
        elif node.kind == "enter":
            self._enter(node, rows)
        elif node.kind == "upload":
            values = self._fetch(node, 0, rows, None)
            arena, _ = self.layout.place(node.node.outputs[0])
            slots = self._do(op.UPLOAD, rows, values, arena, results=1)
            self._emit(node, rows, [slots])
        else:
            self._fire(node, rows, None)

    def _fire_inline(self, nodes: Sequence[LinkedNode], rows: int, fields: Fields) -> None:
        for sequence, run in groupby(nodes, kept_sequence):
            together = list(run)
            for node in together:
                self._do(op.FIRED, rows)
                if sequence is None or len(together) == 1:
                    self._fire(node, rows, fields)
            if sequence is not None and len(together) > 1:
                self._keep_elements(together, rows, fields)

    def _keep_elements(self, nodes: Sequence[LinkedNode], rows: int, fields: Fields) -> None:
        """Elements of one sequence that do nothing but wait for other nodes, all at once. A node
        that waits for several of them is ready when the last has arrived.
        """
        sequence = self._fetch(nodes[0], 0, rows, fields)
        indices = [self._fetch(node, 1, rows, fields) for node in nodes]
        groups = [node.output for node in nodes if node.output is not None]
        offsets = [
            self.layout.slot(g.context, column) for g in groups for _, column in g.slot_stores
        ]
        arena, _ = self.layout.place(nodes[0].node.outputs[0])
        arrivals: dict[LinkedNode, int] = {}
        for node in (node for group in groups for node in group.counted):
            arrivals[node] = arrivals.pop(node, 0) + 1
        with self._unless_empty(rows):
            listed = self._list([*indices, *offsets])
            self._do(op.STORE_ELEMENTS, rows, sequence, listed, len(nodes), arena)
            for node, count in arrivals.items():
                self._count_down(node, rows, count)

    def _fire(self, node: LinkedNode, rows: int, fields: Fields) -> None:
        operation = node.node.operation
        if isinstance(operation, Compute):
            self._emit(node, rows, self._compute(node, operation, rows, fields))
        elif node.kind == "pass":
            self._emit(node, rows, self._fetch_all(node, rows, fields))
        elif isinstance(operation, Switch):
            self._switch(node, operation, rows, fields)
        else:
            assert isinstance(operation, Primitive)
            self._emit(node, rows, [self._primitive(node, operation, rows, fields)])

    def _emit(self, node: LinkedNode, rows: int, values: Sequence[int]) -> None:
        if node.output is not None:
            self._deliver(node.output, rows, values)

    def _switch(self, node: LinkedNode, operation: Switch, rows: int, fields: Fields) -> None:
        index = self._fetch(node, 0, rows, fields)
        if dtype_of(node.node.inputs[0]) not in ("int64", "bool"):
            raise NotNative("floats on the host")
        linked = self.linked.contexts[node.context]
        most = linked.context.maximum_iterations
        if node.is_loop_switch and most is not None:
            count = self._column(rows, op.COUNT)
            is_below = self._host(rows, op.LESS, count, self._constant(most))
            index = self._host(rows, op.AND, self._host(rows, op.IS_TRUE, index), is_below)
        arms = len(operation.arms)
        first = self._do(op.SPLIT, rows, index, arms, int(operation.is_cond), results=arms)
        for number, arm in enumerate(operation.arms):
            if node.is_loop_switch and number == 1:
                self._go_on(node.context, first + number)
            else:
                self._activate(node.context, linked.arms[arm], first + number)

    def _activate(self, context: int, arm: Arm, rows: int) -> None:
        """Rows enter an arm, as in `Machine.activate`."""
        with self._unless_empty(rows):
            if arm is not self.linked.contexts[context].arms[0]:
                self._do(op.WAIT, rows, arm.todo)
                for node in arm.calls:
                    self._call(node, rows)
            for node in arm.counted:
                self._count_down(node, rows)
            for node in arm.queued:
                self._do(op.ENQUEUE, rows, self.layout.number[node])
            self._fire_inline(arm.inline, rows, None)

    def _call(self, node: LinkedNode, rows: int) -> None:
        operation = node.node.operation
        assert isinstance(operation, Call)
        self._do(op.WAIT, rows, 1)
        child = self.layout.child(node.context, node.child)
        self._create(operation.callee, rows, operation.site, child, op.CALLED)

    def _create(self, context: int, rows: int, site: int, child: int, how: int) -> int:
        new = self._do(op.CREATE, rows, context, site, child, how, results=1)
        self._set_off(context, new)
        return new

    def _set_off(self, context: int, new: int) -> None:
        """New rows of a context will start, and what they call in any case is there."""
        linked = self.linked.contexts[context]
        with self._unless_empty(new):
            if linked.start is not None:
                self._do(op.ENQUEUE, new, self.layout.number[linked.start])
            for node in linked.arms[0].calls:
                self._call(node, new)

    def _enter(self, node: LinkedNode, rows: int) -> None:
        operation = node.node.operation
        assert isinstance(operation, Enter)
        linked = self.linked.contexts[operation.loop]
        initial = [self._fetch(node, k, rows, None) for k in range(operation.carried)]
        if node.trip_count is not None:
            counter, access, sized = node.trip_count
            last = self._look_up(node.context, access, rows)
            if sized is not None:
                last = self._length(sized, rows, last)
            order = self._do(op.LONGEST_FIRST, rows, initial[counter], last, results=1)
            initial = [self._do(op.TAKE, order, values, results=1) for values in initial]
            rows = self._do(op.TAKE, order, rows, results=1)
        self._do(op.WAIT, rows, 1)
        new = self._create(operation.loop, rows, 0, -1, op.ENTERED)
        value_of = dict(zip(linked.context.inputs, initial, strict=True))
        for group in linked.inputs:
            self._deliver(group, new, [value_of[wire] for wire in group.wires])

    def _go_on(self, context: int, rows: int) -> None:
        """The bodies of iterations start, with a successor for each."""
        with self._unless_empty(rows):
            self._create(context, rows, 0, self.layout.child(context, -1), op.NEXT)
            self._activate(context, self.linked.contexts[context].arms[2], rows)

    def _launch(self, node: LinkedNode, rows: int) -> None:
        operation, specification = node.node.operation, launch_specification(self.layout, node)
        assert isinstance(operation, Block)
        is_plain = specification is not None and not operation.is_flat
        operands = [
            self._operand(node, position, rows, is_plain=is_plain)
            for position, wire in enumerate(node.node.inputs)
            if wire.is_of_row or wire.input is not None
        ]
        results = len(node.node.outputs)
        listed = self._list(operands)
        if specification is None:
            padded = padded_specification(self.layout, node)
            what = -1 if padded is None else self._list(padded)
            words = listed, len(operands), results, what
            first = self._do(op.ASK, rows, *words, results=results)
        else:
            what = self._list(specification)
            first = self._do(op.LAUNCH, rows, what, listed, results=results)
        self._emit(node, rows, range(first, first + results))

    def _operand(self, node: LinkedNode, position: int, rows: int, *, is_plain: bool) -> int:
        """The register of an operand; for slots in the frames of its rows, which a launch that is
        not flat takes from there, -1 - their offset.
        """
        access = node.access[position]
        is_kept = access.input is None and not access.above and not access.is_host
        if not is_plain or not is_kept:
            return self._fetch(node, position, rows, None)
        return -1 - self.layout.column(node.context, access)


def kept_sequence(node: LinkedNode) -> Wire | None:
    """The sequence of an element that rows keep for nodes that wait for it; None for all other
    nodes, and elements that set off more.
    """
    operation, group = node.node.operation, node.output
    if not isinstance(operation, Primitive) or operation.name != "Element" or group is None:
        return None
    sequence, element = node.node.inputs[0], node.node.outputs[0]
    is_plain = isinstance(sequence.type, TensorType) and sequence.type.is_sequence
    sets_off_more = (
        group.host_stores, group.is_loose, group.inline, group.queued, group.merges,
        group.arguments, group.returns, group.next_values, group.exits, group.joins, group.results,
    )  # fmt: skip
    if any(sets_off_more) or len(group.slot_stores) != 1 or element.home is not Home.SLOT:
        return None
    return sequence if is_plain and sequence.home is Home.SLOT else None
