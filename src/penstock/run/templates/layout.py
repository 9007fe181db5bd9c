"""The index tensors of a template, in one piece of memory that is written anew for every plan.

Each stage has room for the slots of each of its operands and targets. What a plan leaves over reads
an arena's idle slot and writes to its sink: the two slots behind all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from penstock.plan.outline import Outline
from penstock.plan.schedule import (
    Integers,
    Launch,
    Operand,
    Picks,
    Shared,
    Span,
)

#: Slots of an arena behind those of plans: one is read in vain, one written.
SPARE = 2

#: Copies to the device that may be under way while the next one is written.
PENDING = 4


class Layout:
    """Where the slots of a template's launches are, and the launches that stand for all."""

    def __init__(self, stages: Outline, ends: Sequence[int], device: torch.device) -> None:
        self.device = device
        #: The launch of each stage; its slots name their places here.
        self.launches: list[Launch] = []
        #: For each stage where the slots of its operands and targets begin.
        self.places: list[tuple[int, ...]] = []
        self._pieces: dict[int, tuple[int, int]] = {}
        idle: list[Integers] = []
        for stage in stages:
            self._add(stage.likeness, stage.room, ends, idle)
        self._idle = np.concatenate([np.empty(0, np.int64), *idle])
        self._numbers = np.arange(max(ends, default=0))
        self.slots = torch.tensor(self._idle, device=device)
        self._left_over = self.slots.clone()
        self._buffers = [_Buffer(self._idle, device) for _ in range(PENDING)]
        self._turn = 0

    def _add(
        self,
        likeness: tuple[int, tuple[tuple[str, int], ...], tuple[int, ...]],
        room: int,
        ends: Sequence[int],
        idle: list[Integers],
    ) -> None:
        block, sources, targets = likeness
        start = sum(map(len, idle))
        places: list[int] = []

        def new(arena: int, slot: int) -> Picks:
            nonlocal start
            slots = np.full(room, slot, np.int64)
            idle.append(slots)
            places.append(start)
            self._pieces[id(slots)] = start, room
            start += room
            return Picks(arena, slots)

        operands: list[Operand] = [
            Shared(number) if kind == "shared" else new(number, ends[number])
            for kind, number in sources
        ]
        written = tuple(new(arena, ends[arena] + 1) for arena in targets)
        self.launches.append(Launch(block, room, tuple(operands), written))
        self.places.append(tuple(places))

    def find(self, source: Span | Picks, device: torch.device, start: int = 0) -> torch.Tensor:
        """The slots of an operand or a target of one of the launches."""
        assert (start, device) == (0, self.device)
        return self.piece(source, self.slots)

    def piece(self, source: Span | Picks, values: torch.Tensor) -> torch.Tensor:
        """What values, one for each slot, are for an operand or a target."""
        assert isinstance(source, Picks)
        first, room = self._pieces[id(source.slots)]
        return values[first : first + room]

    def are_taken(self) -> torch.Tensor:
        """For each slot whether it is the plan's, and not left over."""
        return self.slots.ne(self._left_over)

    def pour(self, stages: Sequence[int], launches: Sequence[Launch]) -> None:
        """Take the slots of a plan, each launch at its stage."""
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % PENDING
        view = buffer.view()
        view[:] = self._idle
        for stage, launch in zip(stages, launches, strict=True):
            for place, item in zip(self.places[stage], slot_items(launch), strict=True):
                if type(item) is Span:
                    slots = self._numbers[item.start : item.start + item.count]
                else:
                    slots = item.slots  # type: ignore[union-attr]
                view[place : place + launch.rows] = slots
        buffer.send(self.slots)


def slot_items(launch: Launch) -> Iterator[Span | Picks]:
    """The operands that have slots, and the targets."""
    for operand in launch.operands:
        if type(operand) in (Span, Picks):
            yield operand  # type: ignore[misc]
    yield from launch.targets


class _Buffer:
    """Host memory whose copy may be under way."""

    def __init__(self, idle: Integers, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._memory = torch.empty(len(idle), dtype=torch.int64, pin_memory=is_cuda)
        self._view: Integers = self._memory.numpy()
        self._sent: torch.cuda.Event | None = None
        if is_cuda:
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def view(self) -> Integers:
        """The memory, once its last copy is done."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._view

    def send(self, target: torch.Tensor) -> None:
        """Copy it to the device."""
        target.copy_(self._memory, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
