"""A rank with several devices: each has a thread for its instructions, and one thread has all
messages of the rank, in the order of the schedule.

A message waits for rows of a device, or a device for rows of a message; both only for what is
earlier in the schedule. Devices of different process groups have different threads, since groups
need not agree on the order of their calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from penstock.distributed.course import Course
from penstock.distributed.kept_plans import Stage
from penstock.distributed.lanes import Lanes
from penstock.distributed.run import PlacedTapedRun, Placing
from penstock.distributed.turns import Cross, Hand, Marked, Own, Spread, Tell, Turn
from penstock.plan.schedule import (
    Array,
    Await,
    Copy,
    Instruction,
    Launch,
    Mark,
    Picks,
    Shared,
    Span,
)
from penstock.run.engine import Run
from penstock.run.flight import Message
from penstock.run.fused.indices import Indices
from penstock.run.prepared import PreparedLaunch, prepare_receipt


class OnLanes(Placing):
    """A run of a rank with several devices; comes before another kind of run."""

    manner = b"on lanes"
    lanes: Lanes
    #: The number of the turn that the thread at hand takes.
    now: threading.local

    def _follow(self, course: Course) -> None:
        assert self.executable.placement is not None
        devices = self.executable.placement.devices
        self.lanes = Lanes(self.transport, devices, f"call {self.call}")
        self.now = threading.local()
        self._marks: dict[int, list[threading.Event]] = {}
        #: The marks that the next launch waits for.
        self._awaited: list[int] = []
        try:
            super()._follow(course)
        except BaseException as error:
            self.lanes.land(error)  # what all ranks have planned is carried out
            raise
        self.lanes.land()

    def _bind_ahead(self, step: PreparedLaunch) -> None:
        """Nothing is compiled for devices."""

    def _stamp(self, digest: bytes) -> None:
        self.lanes.add(self.lanes.messages, partial(super()._stamp, digest))

    def _expect(self, turns: Sequence[Turn]) -> None:
        """Messages have a thread of their own, which is there before."""

    # ---- turns -----------------------------------------------------------------------------------

    def _take_first(self, stage: Stage, window: Sequence[Instruction]) -> list[Array] | None:
        indices = [Indices() for _ in self.ranks]
        planned = range(len(window))
        turns = (self._turn(window, k, indices[self._lane_of(window[k])]) for k in planned)
        stage.turns = tuple(turn for turn in turns if turn is not None)
        return self._take(stage.turns)

    def _lane_of(self, item: Instruction) -> int:
        """Index tensors are brought along by one thread each."""
        return self.planner.blocks[item.block] if isinstance(item, Launch) else 0  # type: ignore[union-attr]

    def _turn(self, window: Sequence[Instruction], position: int, indices: Indices) -> Turn | None:
        item = window[position]
        if isinstance(item, Mark):
            return Marked(item.number)
        if isinstance(item, Await):
            self._awaited.append(item.mark)
        turn = super()._turn(window, position, indices)
        if isinstance(item, Launch):
            if isinstance(turn, Own):
                turn.marks = tuple(self._awaited)
            self._awaited.clear()
        return turn

    def _copy_of(self, item: Copy, coming: Sequence[Instruction], *, is_given: bool) -> Turn | None:
        source, target = self.device(item.source), self.device(item.target)
        if {self.ranks[source], self.ranks[target]} == {self.transport.rank}:
            return Hand(source, target, item)
        return super()._copy_of(item, coming, is_given=is_given)

    def _take(self, turns: Sequence[Turn]) -> list[Array] | None:
        if len(self.planner.spaces):
            self.arena(len(self.planner.spaces) - 1)  # threads must not make arenas
        heard: list[Message] | None = None
        for turn in turns:
            self.lanes.count += 1
            if isinstance(turn, Tell):
                heard = [self._put_tell(part) for part in turn.parts]
            else:
                self._put(turn)
        self.lanes.put()
        if heard is None:
            return None
        values = [message.take() for message in heard]
        self.lanes.flight.check()
        return [item.numpy() for item in values if item is not None]

    def _put(self, turn: Own | Hand | Cross | Marked) -> None:
        if isinstance(turn, Own):
            self._put_own(turn)
        elif isinstance(turn, Hand):
            self._put_hand(turn)
        elif isinstance(turn, Cross):
            self._put_cross(turn)
        else:
            self._put_mark(turn)

    def _put_mark(self, turn: Marked) -> None:
        known = self._marks.items()
        self._marks = {n: e for n, e in known if not all(event.is_set() for event in e)}
        events = self._marks[turn.number] = [threading.Event() for _ in self.lanes.lanes]
        for lane, event in enumerate(events):
            self.lanes.mark(lane, event.set)

    def _put_own(self, turn: Own) -> None:
        if isinstance(turn.item, Launch):
            for operand in turn.item.operands:
                if isinstance(operand, Shared):
                    self.uniform(operand.wire)  # once, and not on several threads
        lane = self.lanes.lanes[turn.device]
        for mark in turn.marks:
            for event in self._marks.get(mark, ()):
                self.lanes.mark(lane, partial(_wait_for, event))
        self.lanes.add(lane, self._numbered(partial(self.step_of, turn)))

    def _put_hand(self, turn: Hand) -> None:
        lanes = self.lanes
        find = partial(self._apart, turn, turn.copy.source)
        message = lanes.pass_on(lanes.lanes[turn.source], find)
        lanes.take(lanes.lanes[turn.target], message, self._numbered(self._put_copy(turn.copy)))

    def _put_copy(self, item: Copy) -> Callable[[torch.Tensor], object]:
        return lambda rows: self._step(prepare_receipt(self, item, rows))

    def _put_cross(self, turn: Cross) -> None:
        lanes, transport, crossing = self.lanes, self.transport, turn.crossing
        if crossing.source == transport.rank:
            lane = lanes.lanes[self.device(crossing.copy.source)]
            message = lanes.pass_on(lane, partial(self._apart, turn, crossing.copy.source))
            peer, what = crossing.target, turn.rows.what
            lanes.take(lanes.messages, message, lambda rows: transport.send(rows, peer, what))
        elif crossing.target == transport.rank:
            lane = lanes.lanes[self.device(crossing.copy.target)]
            receive = partial(transport.receive, turn.rows, crossing.source)
            message = lanes.pass_on(lanes.messages, receive)
            lanes.take(lane, message, partial(self.received, turn))
        else:
            lanes.add(lanes.messages, transport.skip)

    def _put_tell(self, part: Spread) -> Message:
        lanes, transport = self.lanes, self.transport
        found: Message | None = None
        if part.source == transport.rank:
            lane = lanes.lanes[self.device(part.slots)]
            found = lanes.pass_on(lane, partial(self._apart, part, part.slots))

        def tell() -> torch.Tensor | None:
            mine = None if found is None else found.take()
            if found is not None and mine is None:
                return None
            return torch.from_numpy(transport.tell(mine, part.rows, part.source))

        return lanes.pass_on(lanes.messages, tell)

    def _apart(self, turn: Cross | Spread | Hand, source: Span | Picks) -> torch.Tensor:
        """Rows in memory that their device does not write to."""
        rows = self.fetched(turn, source)
        return rows.clone() if isinstance(source, Span) else rows

    def _numbered(self, work: Callable[..., object]) -> Callable[..., None]:
        """Work that says which turn it is."""
        number = self.lanes.count

        def numbered(*rows: torch.Tensor) -> None:
            self.now.number = number
            work(*rows)

        return numbered


class QueuedPlacedRun(OnLanes, Run):
    """A run of a program in several processes, of which this one has several devices."""


class QueuedPlacedTapedRun(OnLanes, PlacedTapedRun):
    """The same, which leaves a tape."""

    def _follow(self, course: Course) -> None:
        made = _Numbered(self)
        self.tape.entries = made  # type: ignore[assignment]
        super()._follow(course)
        found = sorted(made.found, key=lambda pair: pair[0])
        self.tape.entries = [entry for _, entry in found]

    def _put_cross(self, turn: Cross) -> None:
        super()._put_cross(turn)
        self.now.number = self.lanes.count
        self.tape.entries.append(turn.crossing)  # type: ignore[arg-type]


class _Numbered:
    """Entries of a tape, in any order, each with its place in the schedule."""

    def __init__(self, run: OnLanes) -> None:
        self._run = run
        self.found: list[tuple[int, Any]] = []

    def append(self, entry: Any) -> None:
        """Note an entry that the thread at hand has made."""
        self.found.append((self._run.now.number, entry))


def _wait_for(event: threading.Event) -> None:
    event.wait()
