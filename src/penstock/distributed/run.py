"""A run of which this process carries out its own launches, and exchanges rows for the others.

Every rank plans the whole call and goes through the same instructions; `Exchanges` says who takes
part in which. Values that steer the planner are read by one rank and told to all, so that all go on
alike. Results are on every rank in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from penstock.autodiff.tape import TapedRun
from penstock.distributed.agreement import agree_on_call
from penstock.distributed.exchanges import Exchange, Exchanges, Turn
from penstock.distributed.transport import Transport
from penstock.plan.limits import current_limits
from penstock.plan.outcome import InBoxes, OnHost, Where
from penstock.plan.schedule import (
    Array,
    Chunk,
    Copy,
    Instruction,
    Integers,
    Kind,
    Launch,
    Pad,
    Picks,
    Read,
    Span,
    pick,
    slot_count,
)
from penstock.run.engine import Columns, Run
from penstock.run.fused.indices import Indices
from penstock.run.inputs import read_inputs
from penstock.run.prepared import Prepared, PreparedWindow
from penstock.run.runner import merged


class Placing(Run):
    """A run that is one of several; comes before another kind of run."""

    transport: Transport
    exchanges: Exchanges

    def place(self, transport: Transport, places: Sequence[int]) -> None:
        """Say which rank launches each block, before the run."""
        self.transport = transport
        self.exchanges = Exchanges(places, transport.size)
        self.has_begun = False

    def _carry_out_all(self, columns: Columns) -> None:
        limits = current_limits().with_depth(self.executable.max_depth)
        inputs = read_inputs(self, columns)
        self.call = self.transport.begin_call()
        agree_on_call(self, columns, inputs, limits)
        self.transport.digest.restart(b"call")
        self._plan_and_run(inputs, limits, columns)
        with self.transport.guarded("giving its results to all ranks"):
            self._spread_results()
            self.transport.finish()

    def _carry_out_prepared(
        self, window: list[Instruction]
    ) -> tuple[PreparedWindow, list[Array] | None]:
        """Carry out this rank's part of some instructions."""
        self.transport.digest.add(window)
        with self.transport.guarded(f"call {self.call}"):
            self._note_inputs()
            self._grow(merged(item for item in window if isinstance(item, Chunk)))
            items = [item for item in window if type(item) is not Chunk]
            turns = [self.exchanges.turn(item) for item in items]
            indices, answer = Indices(), None
            mine = [self._mine(item, turn, indices) for item, turn in zip(items, turns)]
            for item, turn, step in zip(items, turns, mine, strict=True):
                answer = self._take_turn(item, turn, step)
        return PreparedWindow((), ()), answer

    def _note_inputs(self) -> None:
        """What is in arenas before the first of them grows, every rank has."""
        if self.has_begun:
            return
        self.has_begun = True
        for arena in self.arenas:
            for start, chunk in zip(arena.starts, arena.chunks, strict=True):
                self.exchanges.install(Span(arena.number, start, chunk.shape[0]))

    # ---- one instruction -------------------------------------------------------------------------

    def _mine(self, item: Instruction, turn: Turn, indices: Indices) -> Prepared | None:
        """An instruction made ready, if this rank has a part in it."""
        rank = self.transport.rank
        if turn.parts is not None:
            part = turn.parts.get(rank)
            return None if part is None else self._prepare(part, indices)
        if turn.ranks >> rank & 1:
            return self._prepare(item, indices)
        if isinstance(item, Launch):
            self.planner.launched.popleft()
        return None

    def _take_turn(
        self, item: Instruction, turn: Turn, step: Prepared | None
    ) -> list[Array] | None:
        what = self._describe(item)
        for exchange in turn.exchanges:
            self._exchange(exchange, what)
        if isinstance(item, Read):
            return self._tell(item, turn, step)
        if step is not None:
            self._step(step)
        else:
            self._make_room(item)
        return None

    def _make_room(self, item: Instruction) -> None:
        """Arenas that take over results as a whole have room for them on other ranks too."""
        targets = item.targets if isinstance(item, Launch) else ()
        targets = (item.target,) if isinstance(item, Pad) else targets
        for target in targets:
            if isinstance(target, Span) and target.is_whole:
                arena = self.arena(target.arena)
                shape = (target.count, *arena.kind.shape)
                arena.hold(torch.empty(shape, dtype=arena.dtype, device=arena.device))

    def _describe(self, item: Instruction) -> str:
        """What rows are needed for, in words."""
        if isinstance(item, Launch):
            return f"rows for block {self.blocks[item.block].name}"
        return "rows to be copied" if isinstance(item, Copy | Pad) else "values that steer"

    def _exchange(self, exchange: Exchange, what: str) -> None:
        source, target, rows = exchange
        if source == self.transport.rank:
            self.transport.send(self._gather(rows), target, what)
        elif target == self.transport.rank:
            kind = self._kind(rows)
            shape = (slot_count(rows), *kind.shape)
            device = torch.device(kind.device)
            dtype = getattr(torch, kind.dtype)
            self._write(rows, self.transport.receive(shape, dtype, device, source, what))
        else:
            self.transport.skip()

    def _tell(self, item: Read, turn: Turn, step: Prepared | None) -> list[Array]:
        """The values that steer, on every rank."""
        values = self._step(step) if step is not None else None
        source = turn.ranks.bit_length() - 1
        packed = None if values is None else _packed(values)
        kinds = [self._kind(rows) for rows in item.sources]
        shapes = [(slot_count(r), *kind.shape) for r, kind in zip(item.sources, kinds, strict=True)]
        dtypes = [np.dtype(kind.dtype) for kind in kinds]
        sizes = [int(np.prod(s)) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)]
        told = self.transport.broadcast(
            packed, (sum(sizes),), torch.uint8, torch.device("cpu"), source, "values that steer"
        )
        if values is not None:
            return values
        parts = torch.split(told, sizes)
        return [
            part.numpy().view(dtype).reshape(shape)
            for part, dtype, shape in zip(parts, dtypes, shapes, strict=True)
        ]

    # ---- results ---------------------------------------------------------------------------------

    def _spread_results(self) -> None:
        for where in self.outcome.results:
            for rows in _places_of(where):
                for source, part in self.exchanges.spread(rows):
                    self._spread(source, part)

    def _spread(self, source: int, rows: Span | Picks) -> None:
        kind = self._kind(rows)
        is_mine = source == self.transport.rank
        values = self._gather(rows) if is_mine else None
        shape = (slot_count(rows), *kind.shape)
        dtype, device = getattr(torch, kind.dtype), torch.device(kind.device)
        told = self.transport.broadcast(values, shape, dtype, device, source, "results")
        if not is_mine:
            self._write(rows, told)

    # ---- rows ------------------------------------------------------------------------------------

    def _kind(self, rows: Span | Picks) -> Kind:
        return self.planner.spaces[rows.arena].kind

    def _gather(self, rows: Span | Picks) -> torch.Tensor:
        return self.arena(rows.arena).gather(rows)

    def _write(self, rows: Span | Picks, values: torch.Tensor) -> None:
        self.arena(rows.arena).write(rows, values)


class PlacedRun(Placing, Run):
    """A run of a program in several processes."""


class PlacedTapedRun(Placing, TapedRun):
    """The same, which leaves a tape: exchanges are entries of it on every rank."""

    def _exchange(self, exchange: Exchange, what: str) -> None:
        super()._exchange(exchange, what)
        entries: list[Any] = self.tape.entries
        entries.append(exchange)

    def carry_out(self, columns: Columns) -> None:
        """Plan and run; what backward asks of the exchanges is kept."""
        super().carry_out(columns)
        self.digest = self.transport.digest.value


def _packed(values: Sequence[Array]) -> torch.Tensor:
    flat = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in values]
    return torch.from_numpy(np.concatenate(flat))


def _places_of(where: Where | OnHost) -> Iterator[Span | Picks]:
    """The rows of an output."""
    if isinstance(where, OnHost):
        return
    if isinstance(where, InBoxes):
        for number in np.unique(where.arenas).tolist():
            yield _picked(number, where.slots[where.arenas == number])
        return
    yield _picked(*where.of(slice(None)))


def _picked(arena: int, slots: Integers) -> Span | Picks:
    return pick(arena, slots) if len(slots) else Span(arena, 0, 0)
