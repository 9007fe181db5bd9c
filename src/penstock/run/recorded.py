"""Runs recorded steps: one scope, planned and carried out flush by flush.

Values are numbered; the planner knows where each is stored. Arenas live as long as somebody may
still ask for a value. Only `read` waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np
import torch

from penstock.calls.autocast import OFF, autocast_as
from penstock.plan.recorded import Recorded, StepPlanner
from penstock.plan.schedule import Chunk, Integers, Kind, Read, Span, pick
from penstock.plan.slots import ranges
from penstock.run.blocks import RunnableBlock
from penstock.run.faults import Numbers
from penstock.run.recording import CallRecorder
from penstock.run.runner import Runner

#: From the number of a uniform tensor to the tensor.
FetchUniform = Callable[[int], torch.Tensor]


class RecordedRun(Runner):
    """One scope of recorded steps, without gradients.

    Arguments:
        blocks: all blocks there are; it may grow while the scope lives.
        planner: plans the flushes of this scope.
        fetch_uniform: asked at most once for each uniform tensor.
        numbers: the number of each instance, for errors.
    """

    planner: StepPlanner

    def __init__(
        self,
        blocks: Sequence[RunnableBlock],
        planner: StepPlanner,
        fetch_uniform: FetchUniform,
        numbers: Numbers = None,
        recorder: CallRecorder | None = None,
    ) -> None:
        super().__init__(blocks, numbers, recorder)
        self.planner = planner
        self._fetch_uniform: FetchUniform | None = fetch_uniform
        #: What arenas hold, kept when the planner is let go.
        self._extents: list[tuple[Kind, int]] | None = None

    def flush(self, recorded: Recorded, inputs: Sequence[Sequence[torch.Tensor]]) -> None:
        """Plan and run what was recorded; `inputs` are the tensors of `recorded.inputs`."""
        with self._working():
            began = perf_counter()
            instructions, spans = self.planner.flush(recorded)
            if self.recorder is not None:
                planned = sum(not isinstance(item, Chunk) for item in instructions)
                firings = self.recorder.record.firings + planned
                self.recorder.planned(perf_counter() - began, firings)
                self.recorder.record.has_known_plan = self.planner.knew_all
            entries = zip(recorded.inputs, spans, inputs, strict=True)
            for (stored, _), span, tensors in entries:
                self._load(span, stored.length, tensors)
            self._carry_out(instructions)

    def checkpoint(self) -> Any:
        """What `go_back_to` needs to undo the flushes after it."""
        lasting = {id(item): item for item in self.planner.lasting()}
        planner = deepcopy(self.planner, lasting)
        return planner, [len(arena.chunks) for arena in self.arenas]

    def go_back_to(self, checkpoint: Any) -> None:
        """Forget a flush that failed; values of earlier flushes stay."""
        self.planner, chunks = checkpoint
        del self.arenas[len(chunks) :]
        for arena, count in zip(self.arenas, chunks, strict=True):
            arena.cut(count)

    def read(self, values: Integers) -> list[torch.Tensor]:
        """Values as CPU tensors of their own; waits until they are computed."""
        with self._working():
            parts = self._parts(values)
            sources = tuple(Span(arena, 0, len(slots)) for _, arena, slots, _ in parts)
            with self.recorder.read(Read(sources)) if self.recorder else nullcontext():
                gathered = [self._gather(arena, slots, n) for _, arena, slots, n in parts]
                rows = [_on_host(tensor).unbind(0) for tensor in gathered]
        return _in_order(len(values), [places for places, _, _, _ in parts], rows)

    def outputs(self, values: Integers, is_flowing: Sequence[bool]) -> list[torch.Tensor]:
        """Values as ordinary tensors, each in memory of its own."""
        with torch.no_grad(), self.recorder.working() if self.recorder else nullcontext():
            return self._separate(values)

    def finish(self, values: Integers | None = None) -> None:
        """No more flushes come, and only these values may still be asked for (None: none)."""
        self._fetch_uniform = None
        if self._extents is None:
            self._extents = super().extents()
            if self.recorder is not None:
                self.recorder.ended(self)
        if values is None or not len(values):
            self.arenas = []
            if hasattr(self, "planner"):
                del self.planner
            return
        needed = set(self.planner.where(values)[0].tolist())
        for number, arena in enumerate(self.arenas):
            if number not in needed:
                arena.forget()

    def kind(self, number: int) -> Kind:
        """What an arena holds."""
        return super().kind(number) if self._extents is None else self._extents[number][0]

    def extents(self) -> list[tuple[Kind, int]]:
        """For each arena what it holds, and for how many slots."""
        return super().extents() if self._extents is None else self._extents

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Out of the state of the code that is recorded: values are the scope's own."""
        with ExitStack() as stack:
            if self.recorder is not None:
                stack.enter_context(self.recorder.working())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(autocast_as(OFF))
            yield

    def _find_uniform(self, number: int) -> None:
        assert self._fetch_uniform is not None
        self.uniforms[number] = self._fetch_uniform(number)

    def _load(self, span: Span, length: int | None, tensors: Sequence[torch.Tensor]) -> None:
        """Put tensors from outside into their slots, in memory of the scope."""
        join = torch.stack if length is None else torch.cat
        values = join(list(tensors)).detach()
        self.arena(span.arena).install(span.start, values)

    def slots(self, value: int) -> tuple[int, Integers]:
        """The arena and the slots of a value."""
        arenas, starts = self.planner.where(np.array([value]))
        start, length = int(starts[0]), self.planner.stored(value).length
        return int(arenas[0]), np.arange(start, start + (1 if length is None else length))

    def _parts(self, values: Integers) -> list[tuple[list[int], int, Integers, int | None]]:
        """Values of one arena and length: their places among all, the arena, the slots, the
        length.
        """
        if not len(values):
            return []
        arenas, starts = self.planner.where(values)
        lengths = [self.planner.stored(value).length for value in values.tolist()]
        found: dict[tuple[int, int | None], list[int]] = {}
        for place, key in enumerate(zip(arenas.tolist(), lengths, strict=True)):
            found.setdefault(key, []).append(place)
        return [
            (places, arena, _slots(starts[places], length), length)
            for (arena, length), places in found.items()
        ]

    def _gather(self, arena: int, slots: Integers, length: int | None) -> torch.Tensor:
        """Slots of one arena, [values, ...]; may be a view of the arena."""
        count = len(slots) if length is None else len(slots) // length
        return self.arena(arena).gather(pick(arena, slots, length), count)

    def _separate(self, values: Integers) -> list[torch.Tensor]:
        """Values in memory of their own: one gather for each arena and length."""
        parts = self._parts(values)
        rows = [
            torch.ops.aten.unbind_copy.int(self._gather(arena, slots, length))
            for _, arena, slots, length in parts
        ]
        return _in_order(len(values), [places for places, _, _, _ in parts], rows)


def _slots(starts: Integers, length: int | None) -> Integers:
    return starts if length is None else ranges(starts, np.full(len(starts), length))


def _on_host(values: torch.Tensor) -> torch.Tensor:
    """The values on the host, in memory that no launch writes to."""
    return values.clone() if values.device.type == "cpu" else values.cpu()


def _in_order(
    count: int, places: Sequence[Sequence[int]], rows: Sequence[Sequence[torch.Tensor]]
) -> list[torch.Tensor]:
    """Tensors put back into the order in which they were asked for."""
    found: dict[int, torch.Tensor] = {}
    for chosen, tensors in zip(places, rows, strict=True):
        found.update(zip(chosen, tensors, strict=True))
    return [found[place] for place in range(count)]
