"""The arrays of one run of the kernel, which it is handed window by window and gives back.

They are filled from the inputs of a call. Large ones without contents are used by one run after the
other, as fresh memory is slow; what was handed out as records stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import ARENA, BASE, BUNDLE, ENTRY, LENGTH, REFERENCES
from penstock.plan.native.decode import Records
from penstock.plan.native.kernel import advance
from penstock.plan.native.row_kernel import start_instances
from penstock.plan.schedule import Integers, Kind
from penstock.plan.slots import SlotSpace, first_chunk, grown, left_out

if TYPE_CHECKING:
    from penstock.plan.native.machine import NativeMachine

#: Launches that are planned before the first of them is handed out, at most.
WINDOW = 512


@dataclass(slots=True)
class Space:
    """What a runner must know of an arena."""

    kind: Kind
    end: int
    top: int


class _Workspace:
    """Large arrays without contents, used by one run after the other: fresh memory is slow."""

    def __init__(self) -> None:
        self.frames, self.queue = np.empty(1 << 15, np.int64), np.empty(1 << 13, np.int64)
        self.counts, self.heap = np.empty(1 << 13, np.int64), np.empty(1 << 13, np.int64)

    @property
    def size(self) -> int:
        return sum(map(len, (self.frames, self.queue, self.counts, self.heap)))


#: The tables of a call that has none.
_NONE = np.zeros(1, np.int64)

#: Workspaces that nobody uses; one for each thread that plans.
_free: list[_Workspace] = []

#: Integers in a workspace that is kept, at most.
MOST_KEPT = 1 << 25


class KernelState:
    """The arrays of a run of the kernel."""

    def __init__(self, machine: NativeMachine) -> None:
        program, count, limits = machine.program, machine.count, machine.limits
        nodes, contexts = len(program.nodes) + 1, len(program.contexts)
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
        self.live, self.free_rows = np.zeros(contexts, np.int64), np.empty(contexts, np.int64)
        self.free_rows[:] = -1
        self.widths, self.in_data, self.control, self.expanding = np.zeros((4, nodes), np.int64)
        self.heads_of_queues, self.tails = np.empty((2, nodes), np.int64)
        self.heads_of_queues[:] = -1
        self.results = np.zeros((len(program.outputs) + 1, count), np.int64)
        self._take_tables()
        self._take_arenas()
        self.heads, self.data = np.empty(1024, np.int64), np.empty(256 * (count + 4), np.int64)
        self.chunks = np.empty(64, np.int64)
        self.moves = np.empty(4 * program.registers, np.int64)
        self.held, self.arrived = np.empty((2, 64), np.int64)
        self._start()

    def _take_tables(self) -> None:
        tables = self.machine.tables
        if not tables:
            self.table_base = self.table_length = self.table_values = _NONE
            return
        self.table_length = np.concatenate([lengths for lengths, _ in tables])
        self.table_base = self.table_length.cumsum() - self.table_length
        self.table_values = np.concatenate([values for _, values in tables], dtype=np.int64)

    def _take_arenas(self) -> None:
        machine = self.machine
        rows, top = [], 0
        for space in machine.spaces:  # columns as in `opcodes`
            end, kind = space.end, space.kind
            rows.append((end, end, top, 0, 0, left_out(end, kind), first_chunk(kind), end))
            top += 2 * end
        self.arenas = np.array([*rows, (0,) * op.ARENA_COLUMNS], np.int64)
        if top > len(self.space.counts):
            self.space.counts = np.empty(2 * top, np.int64)
        self.space.counts[:top] = 1
        self.scalars[op.COUNTS_TOP] = top
        count = sum(len(lengths) for _, _, lengths in machine.sequences)
        self.sequences = np.zeros((ENTRY, count + 1), np.int64)
        at = 0
        for arena, bases, lengths in machine.sequences:
            columns = self.sequences[:, at : at + len(bases)]
            columns[BASE], columns[LENGTH], columns[REFERENCES] = bases, lengths, 1
            columns[ARENA], columns[BUNDLE] = arena, -1
            at += len(bases)
        self.scalars[op.SEQUENCE_TOP] = count
        self.unused = np.empty(count + 1, np.int64)
        #: The elements of arrays.
        self.pool = np.empty(0, np.int64)

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
        self.scalars[op.QUEUE_TOP], self.scalars[op.CONTROL_COUNT] = 2 + count, 1
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
            self.pool,
            self.results,
            self.heads,
            self.data,
            self.chunks,
            space.heap,
            self.moves,
            self.held,
            self.arrived,
        )
        space.frames, space.queue, space.counts, space.heap = arrays[:4]
        self.sequences, self.unused, self.pool, self.heads, self.data, self.chunks = arrays[4:10]
        self.moves, self.held, self.arrived = arrays[10:]
        self.scalars[op.HOW] = op.AFRESH
        if status not in (op.PAUSED, op.ASKED) and space.size <= MOST_KEPT:
            _free.append(space)
        return status, self._hand_out(first, status)

    def _hand_out(self, first: int, status: int) -> Records:
        """What has been planned; it stays as it is."""
        scalars = self.scalars
        heads, data = self.heads[: scalars[op.HEADS_TOP]], self.data[: scalars[op.DATA_TOP]]
        chunks = self.chunks[: scalars[op.CHUNKS_TOP]]
        if status == op.ASKED:
            data = data.copy()  # little
        elif status == op.PAUSED:
            self.data = np.empty_like(self.data)
        records = Records(first, heads.copy(), data, _by_record(chunks))
        scalars[op.HEADS_TOP] = scalars[op.DATA_TOP] = scalars[op.CHUNKS_TOP] = 0
        return records

    # ---- while the host plans launches ----------------------------------------------------------

    def reserve(self, count: int) -> int:
        """Room on the heap, which the next to push takes."""
        top, space = int(self.scalars[op.HEAP_TOP]), self.space
        if top + count > len(space.heap):
            space.heap = grown(space.heap, 2 * (top + count), 0)
        return top

    def push(self, values: Integers) -> int:
        """Put values on the heap, for the rest of the event; where."""
        top = self.reserve(len(values))
        self.space.heap[top : top + len(values)] = values
        self.scalars[op.HEAP_TOP] = top + len(values)
        return top

    def hold(self, kind: int, arena: int, start: int, count: int) -> None:
        """Have the kernel give something up at the end of the event."""
        top = int(self.scalars[op.HELD_TOP])
        if top + 4 > len(self.held):
            self.held = grown(self.held, 2 * (top + 4), 0)
        self.held[top : top + 4] = kind, arena, start, count
        self.scalars[op.HELD_TOP] = top + 4

    def new_entries(self, count: int) -> Integers:
        """Numbers of sequences that nobody uses."""
        scalars = self.scalars
        free, top = int(scalars[op.SEQUENCE_FREE]), int(scalars[op.SEQUENCE_TOP])
        again = min(count, free)
        fresh = count - again
        if top + fresh > self.sequences.shape[1]:
            capacity = 2 * (top + fresh)
            self.sequences = np.stack([grown(column, capacity, 0) for column in self.sequences])
            self.unused = grown(self.unused, capacity, 0)
        scalars[op.SEQUENCE_FREE], scalars[op.SEQUENCE_TOP] = free - again, top + fresh
        return np.concatenate((self.unused[free - again : free], np.arange(top, top + fresh)))

    def column(self, number: int) -> Integers:
        """One column of the table of sequences."""
        column: Integers = self.sequences[number]
        return column

    def show(self, spaces: Sequence[Space | SlotSpace]) -> None:
        """Say how large arenas have become."""
        for space, row in zip(spaces, self.arenas[:-1].tolist()):
            space.top, space.end = row[op.TOP], row[op.STOP]


def _by_record(chunks: Integers) -> list[list[int]]:
    """Chunks in the order of the records that they come before, arena by arena."""
    return sorted(chunks.reshape(-1, 4).tolist(), key=lambda chunk: chunk[:2])
