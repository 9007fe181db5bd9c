"""A stand-in for the plain machine that plans in native code: same inputs in, same schedule out.

Where the kernel meets a fault, the plain machine plans the call again from the start: it passes
over what has been handed out already, and says what is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.ir.graph import Home
from penstock.plan.call_inputs import Adopted, CallInputs, HostInput, SlotInput
from penstock.plan.faults import HostOperationError, PlanningError
from penstock.plan.host_code import dtype_of
from penstock.plan.limits import Limits
from penstock.plan.linked import Linked
from penstock.plan.machine import Machine, Steps
from penstock.plan.machine_state import ShapeOracle
from penstock.plan.native import opcodes as op
from penstock.plan.native.decode import NOTHING, Decoder, Records
from penstock.plan.native.host_launches import HostLaunches
from penstock.plan.native.kernel_state import KernelState, Space
from penstock.plan.native.program import NativeProgram
from penstock.plan.outcome import Extent, InRuns, InSlots, OnHost, Outcome, Where
from penstock.plan.schedule import Array, Instruction, Integers, Launch, Span
from penstock.plan.slots import SlotSpace


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
        #: The arenas of the kernel, and those of padded copies.
        self.all_spaces: list[Space | SlotSpace] = [Space(kind, 0, 0) for kind in program.arenas]
        self._firings = 0
        #: Plans what the kernel asks for, once it has.
        self._host: HostLaunches | None = None

    @property
    def firings(self) -> int:
        """How many nodes have fired."""
        return self._firings if self.plain is None else self.plain.firings

    @property
    def spaces(self) -> Sequence[Space | SlotSpace]:
        """The arenas."""
        return self.all_spaces if self.plain is None else self.plain.spaces

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
        space = self.all_spaces[arena]
        start = space.end
        if item.lengths is not None:
            first = sum(len(lengths) for _, _, lengths in self.sequences)
            ends = item.lengths.cumsum()
            self.sequences.append((arena, start + ends - item.lengths, item.lengths))
            count = int(ends[-1])
            row[:] = np.arange(first, first + self.count)
        elif item.is_shared:
            count, row[:] = 1, start
        else:
            count, row[:] = self.count, np.arange(start, start + self.count)
        space.end += count
        space.top = space.end
        return Span(arena, start, count)

    def run(self) -> Steps:
        """Plan the entry for all instances."""
        for batch in self.batches():
            if isinstance(batch, Records):
                yield from self.instructions(batch)
            else:
                yield batch

    def instructions(self, records: Records) -> Iterator[Instruction]:
        """What records stand for; the instances of launches go to those that are to be run."""
        for item, instances in self.decoder.decode(records):
            if instances is not None:
                self.launched.append(instances)
            yield item

    def batches(self) -> Iterator[Records | Instruction]:
        """The same as records, a window at a time; instructions where the plain machine plans."""
        state = KernelState(self)
        chunks = 0
        status = op.PAUSED
        while status in (op.PAUSED, op.ASKED):
            told = int(state.scalars[op.RECORDS])
            status, records = self._advance(state, status)
            self._firings = int(state.scalars[op.FIRINGS])
            state.show(self.all_spaces)
            if status == op.FAULT:
                yield from self._plan_again(told + chunks)
                return
            chunks += len(records.chunks)
            yield from records.parted()
        if state.scalars[op.LIVE_ROWS]:
            rows = state.scalars[op.LIVE_ROWS]
            raise PlanningError(f"{rows} rows wait for values that never come")
        self.results = state.results
        self.found = state.sequences

    def _advance(self, state: KernelState, status: int) -> tuple[int, Records]:
        """Let the kernel go on, after launches that it has asked for."""
        if status == op.PAUSED:
            return state.advance()
        if self._host is None:
            self._host = HostLaunches(self, state)
        try:
            is_sound = self._host.fire()
        except HostOperationError:
            is_sound = False
        if not is_sound:
            return op.FAULT, NOTHING
        status, records = state.advance()
        return status, self._host.event(records)

    def _plan_again(self, count: int) -> Iterator[Instruction]:
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
        extents = tuple(Extent(space.kind, space.top) for space in self.all_spaces)
        return Outcome(extents, adopted, inputs, results, self.firings)

    def _where(self, place: tuple[int, bool], values: Integers) -> Where:
        arena, is_sequence = place
        if is_sequence:
            base, length = self.found[0], self.found[1]
            return InRuns(arena, base[values], length[values])
        return InSlots(arena, values)
