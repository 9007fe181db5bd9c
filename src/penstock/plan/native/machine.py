"""A stand-in for the plain machine that plans in native code: same inputs in, same schedule out.

Where the kernel meets a fault, the plain machine plans the call again from the start: it passes
over what has been handed out already, and says what is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.ir.graph import Home
from penstock.plan.call_inputs import Adopted, CallInputs, HostInput, SlotInput
from penstock.plan.faults import PlanningError
from penstock.plan.host_code import dtype_of
from penstock.plan.limits import Limits
from penstock.plan.linked import Linked
from penstock.plan.machine import Machine, Steps
from penstock.plan.machine_state import ShapeOracle
from penstock.plan.native import opcodes as op
from penstock.plan.native.decode import Decoder, Records
from penstock.plan.native.kernel import advance, start_instances
from penstock.plan.native.program import NativeProgram
from penstock.plan.outcome import Extent, InRuns, InSlots, OnHost, Outcome, Where
from penstock.plan.schedule import Array, Integers, Kind, Launch, Span
from penstock.plan.slots import left_out

#: Launches that are planned before the first of them is handed out, at most.
WINDOW = 512


@dataclass(slots=True)
class Space:
    """What a runner must know of an arena."""

    kind: Kind
    end: int
    top: int


class NativeMachine:
    """One run of the kernel over one batch of instances."""

    def __init__(
        self,
        linked: Linked,
        program: NativeProgram,
        decoder: Decoder,
        limits: Limits,
        shapes: ShapeOracle,
        count: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.linked = linked
        self.program = program
        self.decoder = decoder
        self.limits = limits
        self.shapes = shapes
        self.count = count
        self.numbers = numbers
        self.has_drawn = False
        #: The machine that has taken over.
        self.plain: Machine | None = None
        #: The instances of the rows of each launch that is planned and not yet run.
        self.launched: deque[Integers] = deque()
        self._spaces = [Space(kind, 0, 0) for kind in program.arenas]
        self._firings = 0

    @property
    def firings(self) -> int:
        """How many nodes have fired."""
        return self._firings if self.plain is None else self.plain.firings

    @property
    def spaces(self) -> Sequence[Space]:
        """The arenas."""
        return self._spaces if self.plain is None else self.plain.spaces  # type: ignore[return-value]

    # ---- inputs ----------------------------------------------------------------------------------

    def take(self, inputs: CallInputs) -> Adopted:
        """Give the inputs their slots."""
        self.inputs = inputs
        self.values = np.empty((2 * len(inputs.host) + 1, self.count), np.int64)
        self.tables: list[tuple[Integers, Array]] = []
        self.sequences: list[tuple[int, Integers, Integers]] = []
        for position, host in enumerate(inputs.host):
            if host is not None:
                self._take_host(host, self.values[2 * position + 1])
        return tuple(
            () if item is None else (self._take_slots(position, item),)
            for position, item in enumerate(inputs.slots)
        )

    def _take_host(self, host: HostInput, row: Integers) -> None:
        if host.lengths is None:
            row[:] = host.values
            return
        first = sum(len(lengths) for lengths, _ in self.tables)
        self.tables.append((host.lengths, host.values))
        row[:] = np.arange(first, first + self.count)

    def _take_slots(self, position: int, item: SlotInput) -> Span:
        place = self.program.inputs[position]
        assert place is not None
        arena, row = place[0], self.values[2 * position]
        space = self._spaces[arena]
        start = space.end
        if item.lengths is not None:
            first = sum(len(lengths) for _, _, lengths in self.sequences)
            bases = start + np.cumsum(item.lengths) - item.lengths
            self.sequences.append((arena, bases, item.lengths))
            count = int(item.lengths.sum())
            row[:] = np.arange(first, first + self.count)
        elif item.is_shared:
            count, row[:] = 1, start
        else:
            count, row[:] = self.count, np.arange(start, start + self.count)
        space.end += count
        space.top = space.end
        return Span(arena, start, count)

    # ---- planning --------------------------------------------------------------------------------

    def run(self) -> Steps:
        """Plan the entry for all instances."""
        state = _State(self)
        yielded = 0
        status = op.PAUSED
        while status == op.PAUSED:
            status, records = state.advance()
            self._firings = int(state.scalars[op.FIRINGS])
            state.show(self._spaces)
            if status == op.FAULT:
                yield from self._plan_again(yielded)
                return
            for item, instances in self.decoder.decode(records):
                if instances is not None:
                    self.launched.append(instances)
                yielded += 1
                yield item
        if state.scalars[op.LIVE_ROWS]:
            rows = state.scalars[op.LIVE_ROWS]
            raise PlanningError(f"{rows} rows wait for values that never come")
        self.results = state.results
        self.found = state.sequences

    def _plan_again(self, count: int) -> Steps:
        """What the plain machine does after so many instructions."""
        plain = Machine(self.linked, self.limits, self.shapes, self.count, 0, self.numbers)
        plain.take(self.inputs)
        steps = plain.run()
        for _ in range(count):
            if isinstance(next(steps), Launch):
                plain.launched.popleft()
        self.launched.extend(plain.launched)
        plain.launched = self.launched
        self.plain = plain
        yield from steps

    # ---- what is left ----------------------------------------------------------------------------

    def outcome(self, adopted: Adopted) -> Outcome:
        """What the plan leaves behind, once all is planned."""
        if self.plain is not None:
            return self.plain.outcome(adopted)
        inputs = tuple(
            None if place is None or not spans else self._where(place, self.values[2 * position])
            for position, (place, spans) in enumerate(zip(self.program.inputs, adopted))
        )
        results = tuple(
            OnHost(values.astype(dtype_of(wire)))
            if wire.home is Home.HOST
            else self._where((arena, wire.type.is_sequence), values)  # type: ignore[union-attr]
            for (wire, arena), values in zip(self.program.outputs, self.results)
        )
        extents = tuple(Extent(space.kind, space.top) for space in self._spaces)
        return Outcome(extents, adopted, inputs, results, self.firings)

    def _where(self, place: tuple[int, bool], values: Integers) -> Where:
        arena, is_sequence = place
        if is_sequence:
            base, length = self.found[0], self.found[1]
            return InRuns(arena, base[values], length[values])
        return InSlots(arena, values)


class _Workspace:
    """Large arrays without contents, used by one run after the other: fresh memory is slow."""

    def __init__(self) -> None:
        self.frames, self.queue = np.empty(1 << 15, np.int64), np.empty(1 << 13, np.int64)
        self.counts, self.heap = np.empty(1 << 13, np.int64), np.empty(1 << 13, np.int64)

    @property
    def size(self) -> int:
        return sum(map(len, (self.frames, self.queue, self.counts, self.heap)))


#: Workspaces that nobody uses; one for each thread that plans.
_free: list[_Workspace] = []

#: Integers in a workspace that is kept, at most.
MOST_KEPT = 1 << 25


class _State:
    """The arrays of a run of the kernel."""

    def __init__(self, machine: NativeMachine) -> None:
        program, count, limits = machine.program, machine.count, machine.limits
        nodes, contexts = len(program.nodes), len(program.contexts)
        self.machine = machine
        self.scalars = np.zeros(op.SCALARS, np.int64)
        depth = limits.depth if limits.depth is not None else 1 << 62
        self.limits = np.array(
            (
                limits.live_rows,
                limits.loop_rows,
                limits.admitted_rows,
                limits.most_rows,
                depth,
                WINDOW,
                count,
            )
        )
        self.space = _free.pop() if _free else _Workspace()
        self.free_rows, self.live = np.full(contexts, -1), np.zeros(contexts, np.int64)
        self.heads_of_queues = np.full(nodes + 1, -1)
        self.tails = np.full(nodes + 1, -1)
        self.widths, self.in_data = np.zeros((2, nodes + 1), np.int64)
        self.control, self.expanding = np.zeros((2, nodes + 1), np.int64)
        self.results = np.zeros((len(program.outputs) + 1, count), np.int64)
        self._take_tables()
        self._take_arenas()
        self.heads, self.data = np.empty(1024, np.int64), np.empty(256 * (count + 4), np.int64)
        self.chunks = np.empty(64, np.int64)
        self._start()

    def _take_tables(self) -> None:
        tables = self.machine.tables
        lengths = [lengths for lengths, _ in tables] or [np.zeros(1, np.int64)]
        values = [values for _, values in tables] or [np.zeros(1, np.int64)]
        self.table_length = np.concatenate(lengths)
        self.table_base = np.cumsum(self.table_length) - self.table_length
        self.table_values = np.concatenate(values, dtype=np.int64)

    def _take_arenas(self) -> None:
        machine = self.machine
        self.arenas = np.zeros((len(machine.spaces) + 1, op.ARENA_COLUMNS), np.int64)
        top = 0
        for row, space in zip(self.arenas, machine.spaces):
            row[op.TOP] = row[op.STOP] = space.end
            row[op.LEFT_OUT] = left_out(space.end, space.kind)
            row[op.REGION] = top
            top += 2 * space.end
        if top > len(self.space.counts):
            self.space.counts = np.empty(2 * top, np.int64)
        self.space.counts[:top] = 1
        self.scalars[op.COUNTS_TOP] = top
        count = sum(len(lengths) for _, _, lengths in machine.sequences)
        self.sequences = np.zeros((4, count + 1), np.int64)
        at = 0
        for arena, bases, lengths in machine.sequences:
            columns = self.sequences[:, at : at + len(bases)]
            columns[0], columns[1], columns[2], columns[3] = bases, lengths, 1, arena
            at += len(bases)
        self.scalars[op.SEQUENCE_TOP] = count
        self.unused = np.empty(count + 1, np.int64)

    def _start(self) -> None:
        """Rows of all instances wait for the beginning."""
        program = self.machine.program
        rows, self.space.frames = start_instances(
            self.machine.count,
            program.contexts,
            program.waits,
            self.space.frames,
            self.free_rows,
            self.live,
            self.scalars,
        )
        node, count = program.start, len(rows)
        if count + 2 > len(self.space.queue):
            self.space.queue = np.empty(8 * count, np.int64)
        queue = self.space.queue
        queue[0], queue[1] = -1, count
        queue[2 : 2 + count] = rows
        self.control[0] = node
        self.heads_of_queues[node] = self.tails[node] = 0
        self.widths[node] = count
        self.scalars[[op.QUEUE_TOP, op.CONTROL_COUNT]] = 2 + count, 1
        self.scalars[op.FIRINGS] = -1  # beginning is no firing

    def advance(self) -> tuple[int, Records]:
        """One window."""
        program, machine, space = self.machine.program, self.machine, self.space
        first = int(self.scalars[op.RECORDS])
        status, *arrays = advance(
            program.code,
            program.lists,
            program.nodes,
            program.contexts,
            program.groups,
            program.waits,
            program.constants,
            program.registers,
            self.limits,
            machine.values,
            self.table_base,
            self.table_length,
            self.table_values,
            self.scalars,
            space.frames,
            self.free_rows,
            self.live,
            space.queue,
            self.heads_of_queues,
            self.tails,
            self.widths,
            self.control,
            self.expanding,
            self.in_data,
            self.arenas,
            space.counts,
            self.sequences,
            self.unused,
            self.results,
            self.heads,
            self.data,
            self.chunks,
            space.heap,
        )
        space.frames, space.queue, space.counts, space.heap = arrays[:4]
        self.sequences, self.unused, heads, data, chunks = arrays[4:]
        scalars = self.scalars
        records = Records(
            first,
            heads[: scalars[op.HEADS_TOP]],
            data[: scalars[op.DATA_TOP]],
            chunks[: scalars[op.CHUNKS_TOP]],
        )
        if status != op.PAUSED and space.size <= MOST_KEPT:
            _free.append(space)
        if status == op.PAUSED:  # what was handed out stays as it is
            self.heads, self.data = np.empty_like(heads), np.empty_like(data)
            self.chunks = np.empty_like(chunks)
            scalars[[op.HEADS_TOP, op.DATA_TOP, op.CHUNKS_TOP]] = 0
        return status, records

    def show(self, spaces: Sequence[Space]) -> None:
        """Say how large arenas have become."""
        for space, row in zip(spaces, self.arenas.tolist()):
            space.top, space.end = row[op.TOP], row[op.STOP]
