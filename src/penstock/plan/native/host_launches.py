"""Launches that the kernel leaves to the host: blocks that mix along dynamic dimensions.

The kernel stops inside the event that such a block fires in. Its rows are then launched as the
plain machine would do it, on tables that stand for those of the kernel, and what the launches give
arrives in the kernel, group of rows by group of rows. Once a padded form is known, the kernel
launches rows that have padded copies side by side itself, as in most steps of a decoder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.ir.graph import Home, Wire
from penstock.ir.types import TensorType
from penstock.plan.bundles import Bundles
from penstock.plan.host_code import dtype_of
from penstock.plan.launches import launch_mixing, sizes_of
from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import (
    ARENA,
    BASE,
    BUNDLE,
    BUNDLE_ROW,
    LENGTH,
    REFERENCES,
    allocate_for_host,
)
from penstock.plan.native.launch_kernel import HELD_RUN, HELD_SEQUENCES, HELD_SLOTS
from penstock.plan.schedule import Array, Instruction, Integers, Kind, Launch, Picks, Span
from penstock.plan.slots import SequenceTable, SlotSpace

if TYPE_CHECKING:
    from penstock.plan.linked import Group, LinkedNode
    from penstock.plan.native.decode import Records
    from penstock.plan.native.kernel_state import KernelState
    from penstock.plan.native.machine import NativeMachine


class _Forgotten(list[Callable[[], None]]):
    """Holds nothing: the kernel knows what must be given up at the end of an event."""

    def append(self, release: Callable[[], None]) -> None:
        """Forget it."""


class HostLaunches:
    """What stands for the machine while launches are planned on the host."""

    def __init__(self, machine: NativeMachine, state: KernelState) -> None:
        self.machine, self.state = machine, state
        self.shapes = machine.shapes
        self.spaces = machine.all_spaces
        self.bundles = Bundles(self.spaces)  # type: ignore[arg-type]
        self.held: list[Callable[[], None]] = _Forgotten()
        self._tables = [
            KernelSpace(number, kind, self) for number, kind in enumerate(machine.program.arenas)
        ]
        self._places: dict[Wire, SlotSpace | SequenceTable] = {}
        #: Instructions of the event at hand, and the instances of launches among them.
        self.out: list[Instruction] = []
        self.launched: deque[Integers] = deque()
        #: Where arenas have grown in the event.
        self.chunks: list[list[int]] = []
        #: How many of the instructions the kernel knows of.
        self._told = 0
        #: Results that are still to arrive: the next of them or the end of the event brings them.
        self._waiting: tuple[Integers, Sequence[Array]] | None = None
        self.is_sound = True

    def place(self, wire: Wire) -> SlotSpace | SequenceTable:
        """Where the values of a slot wire live."""
        place = self._places.get(wire)
        if place is None:
            space = self._tables[self.machine.program.arena_of(wire)]
            is_sequence = isinstance(wire.type, TensorType) and wire.type.is_sequence
            place = self._places[wire] = space.sequences if is_sequence else space
        return place

    def fire(self) -> bool:
        """Plan what the kernel has asked for; the rest of the event is up to it then. False where
        the plain machine must tell.
        """
        state = self.state
        self.out, self.chunks, self._told, self._waiting = [], [], 0, None
        node = self.machine.program.queued[state.scalars[op.ASKED_NODE]]
        count, heap = int(state.scalars[op.ASKED_COUNT]), state.space.heap
        rows = heap[op.ROWS_REGISTER : op.ROWS_REGISTER + count].copy()
        wires = {p: w for p, w in enumerate(node.node.inputs) if w.home is not Home.UNIFORM}
        top = state.scalars[op.HEAP_TOP]
        starts = heap[top : top + len(wires)].tolist()
        values = {
            position: _typed(wires[position], heap[start : start + count].copy())
            for position, start in zip(wires, starts, strict=True)
        }
        launch_mixing(self, node, rows, values)
        self._tell(op.WITH_LAST)
        self._note_padded(node, values)
        return self.is_sound

    def _note_padded(self, node: LinkedNode, values: dict[int, Array]) -> None:
        """Let the kernel launch the padded form itself next time, where that takes no thought."""
        lists = self.machine.program.lists
        what = self.machine.program.code[self.state.scalars[op.ASKED_AT] + 6]
        launched = {item.block for item in self.out if isinstance(item, Launch)} - {node.block}
        if what < 0 or lists[what + op.PADDED_FORM] >= 0 or not launched:
            return
        padding = self.shapes.padding(node.block, sizes_of(self, node, values))
        if padding is not None and len(padding.least) == 1 and not padding.ties:
            (lists[what + op.LEAST_LENGTH],) = padding.least.values()
            lists[what + op.PADDED_FORM] = padding.block

    def put_launch(self, node: LinkedNode, rows: Integers, launch: Launch) -> None:
        """One more instruction, with the instances of its rows."""
        self.out.append(launch)
        self.launched.append(self.state.space.frames[rows + op.INSTANCE])

    def deliver(self, group: Group, rows: Integers, arrays: Sequence[Array]) -> None:
        """Results of some rows: what comes next finds them arrived."""
        self.let_arrive()
        self._waiting = rows, arrays

    def let_arrive(self) -> None:
        """Let results of earlier rows arrive before anything else happens."""
        if self._waiting is None or not self.is_sound:
            return
        self._tell(op.WITH_MORE)
        status, records = self.state.advance()
        self.is_sound = status == op.ASKED
        self.chunks += records.chunks
        made = self.machine.decoder.decode(records._replace(chunks=[]))
        self.out += [item for item, _ in made]
        self._told = len(self.out)

    def event(self, later: Records) -> Records:
        """All records from the event at hand on; its chunks come before its instructions."""
        given = [
            (item, self.launched.popleft() if isinstance(item, Launch) else None)
            for item in self.out
        ]
        chunks = sorted(self.chunks + later.chunks, key=lambda chunk: chunk[:2])
        return later._replace(first=later.first - len(given), chunks=chunks, given=given)

    def _tell(self, how: int) -> None:
        """Say which results the kernel goes on with."""
        state, scalars = self.state, self.state.scalars
        scalars[op.RECORDS] += len(self.out) - self._told
        self._told = len(self.out)
        rows, arrays = self._waiting or (np.empty(0, np.int64), ())
        top = int(scalars[op.HEAP_TOP])
        for values in (rows, *arrays):
            state.push(values)
        scalars[op.HEAP_TOP] = top
        scalars[op.GIVEN_ROWS], scalars[op.HOW] = len(rows), how
        self._waiting = None


def _typed(wire: Wire, values: Integers) -> Array:
    """Values as the plain machine has them."""
    if wire.home is not Home.HOST:
        return values
    dtype = dtype_of(wire)
    return values if dtype == "int64" else values.astype(dtype)


class KernelSpace(SlotSpace):
    """The slots of an arena of the kernel."""

    def __init__(self, number: int, kind: Kind, launches: HostLaunches) -> None:
        self.number, self.kind = number, kind
        self.launches = launches
        self.sequences = KernelSequences(self, launches)

    def allocate(self, count: int, *, as_run: bool = False) -> Span | Picks:
        """Slots that the kernel gives up at the end of the event, unless somebody keeps them."""
        self.launches.let_arrive()
        state = self.launches.state
        into = state.reserve(count)
        start, state.space.counts, state.chunks = allocate_for_host(
            self.number,
            count,
            int(as_run),
            state.space.heap,
            into,
            state.arenas,
            state.space.counts,
            state.sequences,
            state.chunks,
            state.scalars,
        )
        if start >= 0:
            state.hold(HELD_RUN, self.number, start, count)
            return Span(self.number, start, count)
        slots = state.space.heap[into : into + count].copy()
        state.hold(HELD_SLOTS, self.number, state.push(slots), count)
        return Picks(self.number, slots)


class KernelSequences(SequenceTable):
    """The sequences of the kernel whose elements are in one of its arenas."""

    def __init__(self, space: KernelSpace, launches: HostLaunches) -> None:
        self.space = space
        self.launches = launches

    def create(self, base: Integers, length: Integers) -> Integers:
        """New sequences, given up as slots are."""
        self.launches.let_arrive()
        state = self.launches.state
        numbers = state.new_entries(len(base))
        table = state.sequences
        table[BASE, numbers], table[LENGTH, numbers] = base, length
        table[REFERENCES, numbers], table[ARENA, numbers] = 1, self.space.number
        table[BUNDLE, numbers] = -1
        state.hold(HELD_SEQUENCES, self.space.number, state.push(numbers), len(numbers))
        return numbers

    @property
    def base(self) -> Integers:  # type: ignore[override]
        """Where sequences begin."""
        return self.launches.state.column(BASE)

    @property
    def length(self) -> Integers:  # type: ignore[override]
        """How many elements they have."""
        return self.launches.state.column(LENGTH)

    @property
    def counts(self) -> Integers:  # type: ignore[override]
        """References to them."""
        return self.launches.state.column(REFERENCES)

    @property
    def bundle(self) -> Integers:  # type: ignore[override]
        """The bundles with padded copies."""
        return self.launches.state.column(BUNDLE)

    @property
    def row(self) -> Integers:  # type: ignore[override]
        """The rows of these copies."""
        return self.launches.state.column(BUNDLE_ROW)
