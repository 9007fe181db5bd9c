"""Carries out instructions: grows arenas, gathers operands, launches blocks, writes results.

This is the part of a run that does not ask where the instructions come from: the machine of a
program, the planner of recorded steps, or a plan that was kept. A planner says what its arenas hold
and which instance each row of the coming launches belongs to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Protocol, TypeVar

import torch

from penstock.plan.faults import HostOperationError, RowFault
from penstock.plan.schedule import (
    Array,
    Chunk,
    Copy,
    Instruction,
    Integers,
    Kind,
    Launch,
    Pad,
    Read,
    Store,
    Unpad,
)
from penstock.run.arenas import Arena, Mirror, merged
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.capturing import refuse_while_capturing
from penstock.run.collector import collector_waits
from penstock.run.distinct import launch_distinct, may_be_distinct
from penstock.run.faults import Numbers, note_launch
from penstock.run.fused.binding import FusedLaunch
from penstock.run.fused.form import FusedForm
from penstock.run.fused.indices import Indices
from penstock.run.fused.setting import Fusion
from penstock.run.memory.exhaustion import is_out_of_memory, note_exhausted
from penstock.run.memory.lasting import give_back_lasting
from penstock.run.memory.policy import KEEP
from penstock.run.memory.room import with_room
from penstock.run.nans import check_launch
from penstock.run.prepared import (
    Prepared,
    PreparedCopy,
    PreparedLaunch,
    PreparedPadding,
    PreparedRead,
    PreparedReceipt,
    PreparedStore,
    PreparedWindow,
    is_repeatable,
    not_inferring,
    prepare_copy,
    prepare_pad,
    prepare_read,
    prepare_store,
    prepare_unpad,
)
from penstock.run.recording import CallRecorder
from penstock.run.straight import Note
from penstock.run.uploads import unchanging

Made = TypeVar("Made")


class Space(Protocol):
    """The slots of one arena."""

    @property
    def kind(self) -> Kind:
        """What the arena holds."""

    @property
    def end(self) -> int:
        """How many slots it has."""


class Planner(Protocol):
    """What a runner asks of whoever makes its instructions."""

    @property
    def spaces(self) -> Sequence[Space]:
        """The slots of each arena, by its number."""

    @property
    def launched(self) -> deque[Integers]:
        """For each launch to come, the instance of each of its rows."""


class Runner:
    """Arenas, uniform values, and how instructions are carried out on them."""

    #: Who makes the instructions.
    planner: Planner
    #: Whether it is known that no launch reads and writes the same slot.
    keeps_apart = False
    #: Whether rows that read the same numbers may be computed once.
    shares_rows = False
    #: What becomes of saved values.
    policy = KEEP

    def __init__(
        self,
        blocks: Sequence[RunnableBlock],
        numbers: Numbers = None,
        recorder: CallRecorder | None = None,
    ) -> None:
        #: A launch names its block by the position here.
        self.blocks = blocks
        self.numbers = numbers
        #: None where no profile is active.
        self.recorder = recorder
        self.arenas: list[Arena] = []
        #: Uniform values by wire, as far as they have been asked for.
        self.uniforms: dict[int, torch.Tensor] = {}
        #: Chunks of inputs on other devices than their arena's.
        self.mirrors: dict[Mirror, torch.Tensor] = {}
        #: The instance for which a launch has failed, where that is known.
        self.failed_instance: int | None = None

    def arena(self, number: int) -> Arena:
        """The arena of that number."""
        arenas = self.arenas
        while number >= len(arenas):
            arenas.append(Arena(self.planner.spaces[len(arenas)].kind, len(arenas)))
        return arenas[number]

    def kind(self, number: int) -> Kind:
        """What an arena holds."""
        return self.planner.spaces[number].kind

    def mirror(self, mirror: Mirror) -> torch.Tensor:
        """A chunk of inputs on another device."""
        if mirror not in self.mirrors:
            refuse_while_capturing()
            values = self.arenas[mirror.arena].chunks[mirror.chunk]
            self.mirrors[mirror] = unchanging(values).to(mirror.device, non_blocking=True)
        return self.mirrors[mirror]

    def extents(self) -> list[tuple[Kind, int]]:
        """For each arena what it holds, and for how many slots."""
        return [(space.kind, space.end) for space in self.planner.spaces]

    def uniform(self, number: int) -> torch.Tensor:
        """A uniform value, found when first asked for."""
        if number not in self.uniforms:
            self._find_uniform(number)
        return self.uniforms[number]

    def _find_uniform(self, number: int) -> None:
        """Put a value, and perhaps others, among the uniform ones."""
        raise NotImplementedError

    # ---- instructions ----------------------------------------------------------------------------

    def _carry_out(self, window: list[Instruction]) -> list[Array] | None:
        """Carry out instructions in order; what was read, if the last one reads."""
        return self._carry_out_prepared(window)[1]

    def _carry_out_prepared(
        self, window: list[Instruction]
    ) -> tuple[PreparedWindow, list[Array] | None]:
        """The same, with the instructions as they were prepared for it."""
        growth = merged(item for item in window if isinstance(item, Chunk))
        self._grow(growth)
        indices = Indices()
        with not_inferring(), collector_waits():
            steps = [self._prepare(item, indices) for item in window if type(item) is not Chunk]
        return PreparedWindow(growth, tuple(steps)), self._run_steps(steps)

    def _carry_out_again(self, window: PreparedWindow) -> None:
        """Carry out instructions that another run has prepared."""
        self._grow(window.growth)
        self._run_steps(window.steps)

    def _run_steps(self, steps: Sequence[Prepared]) -> list[Array] | None:
        """What the last step has read, if it reads."""
        answer = step = None
        try:
            for step in steps:
                try:
                    answer = self._step(step)
                except Exception as error:
                    answer = self._step_with_room(step, error)
        except Exception as error:
            launched = step if isinstance(step, PreparedLaunch) else None
            block, rows = (launched.block, launched.launch.rows) if launched else (None, 0)
            note_exhausted(error, self, block, rows)
            raise
        return answer

    def _step_with_room(self, step: Prepared, error: Exception) -> list[Array] | None:
        """Carry out a step once more where an allocation has failed and memory is given back that
        was kept for later calls.
        """
        if not is_out_of_memory(error) or not is_repeatable(step) or not give_back_lasting():
            raise error
        return self._step(step)

    def straight_launch(self, step: Prepared) -> tuple[FusedLaunch, Note | None] | None:
        """A launch as it was run compiled, and what to do with what it gives; None for what goes
        the usual way.
        """
        if not isinstance(step, PreparedLaunch) or self.may_share(step):
            return None
        fused = step.fused.get("inference")
        return None if fused is None else (fused, None)

    def compiled_form(self, step: PreparedLaunch) -> FusedForm | None:
        """What a launch was bound to that computes each row; None where it was not."""
        fused = step.fused.get("inference")
        return None if fused is None else fused.form

    def may_share(self, step: PreparedLaunch) -> bool:
        """Whether a launch may turn out to be one of fewer rows."""
        return self.shares_rows and may_be_distinct(step)

    def saved_bytes(self) -> int:
        """Bytes that are held for a backward pass."""
        return 0

    def relieve(self) -> int:
        """Let saved values leave, as an allocation has failed; the bytes that did."""
        return 0

    def with_room(self, work: Callable[[], Made]) -> Made:
        """Do between launches what may be done again where an allocation fails."""
        try:
            return with_room(work, self.relieve)
        except Exception as error:
            note_exhausted(error, self, None, 0)
            raise

    def _grow(self, chunks: Sequence[Chunk]) -> None:
        try:
            for chunk in chunks:
                self._grow_arena(chunk)
        except Exception as error:
            note_exhausted(error, self, None, 0)
            raise

    def _grow_arena(self, chunk: Chunk) -> None:
        self.arena(chunk.arena).grow(chunk.start, chunk.count)

    def _prepare(self, item: Instruction, indices: Indices) -> Prepared:
        if isinstance(item, Launch):
            instances = self.planner.launched.popleft()
            step = PreparedLaunch(item, self.blocks[item.block], instances, indices)
            self._bind_ahead(step)
            return step
        if isinstance(item, Store):
            return prepare_store(self, item)
        if isinstance(item, Copy):
            return prepare_copy(self, item)
        if isinstance(item, Pad):
            return prepare_pad(self, item)
        if isinstance(item, Unpad):
            return prepare_unpad(self, item)
        assert isinstance(item, Read)
        return prepare_read(self, item)

    def half_of(self, number: int) -> tuple[BatchFunction, str, int] | None:
        """What a block that is launched whole runs: a function, its name, and how many values it
        gives behind the block's results; None where it is not launched whole.
        """
        block = self.blocks[number]
        function = block.plain_function() if block.is_uniform else None
        return None if function is None else (function, "inference", 0)

    def _bind_ahead(self, step: PreparedLaunch) -> None:
        """Bind a launch that will be run compiled, so that the slots of all launches of a window
        travel together.
        """
        if step.block.is_hot("inference"):
            step.fused_for(self, "inference", step.bind)

    def _step(self, step: Prepared) -> list[Array] | None:
        if isinstance(step, PreparedLaunch):
            if self.recorder is None:
                self._launch(step)
            else:
                self.recorder.launch(self, step, self._launch)
        elif isinstance(step, PreparedStore):
            self._store(step)
        elif isinstance(step, PreparedCopy):
            self._copy_recorded(step)
        elif isinstance(step, PreparedPadding):
            self._pad(step)
        else:
            with self.recorder.read(step.read) if self.recorder else nullcontext():
                return self._read(step)
        return None

    def _store(self, step: PreparedStore) -> None:
        step.put(self, step.values)

    def _copy_recorded(self, step: PreparedCopy) -> None:
        if self.recorder is not None and not isinstance(step, PreparedReceipt):
            self.recorder.sent(step.copy)
        self._copy(step)
        if self.recorder is not None:
            self.recorder.received(step.copy)

    def _copy(self, step: PreparedCopy) -> None:
        step.put(self, step.fetch(self))

    def _pad(self, step: PreparedPadding) -> None:
        step.put(self, step.fetch(self))

    def _read(self, step: PreparedRead) -> list[Array]:
        gathered = [fetch(self) for fetch in step.fetches]
        return [values.cpu().numpy() for values in gathered]

    def _launch(self, step: PreparedLaunch) -> None:
        if self.run_bound(step, "inference") is not None or launch_distinct(self, step):
            return
        if step.block.is_hot("inference", step.launch.rows) and not self.checks_nan:
            fused = step.fused_for(self, "inference", step.bind)
            if fused is not None and fused.run(self) is not None:
                return
        arguments = step.arguments(self)
        try:
            outputs = step.run(arguments)
        except Exception as error:
            self.name_launch(error, step, arguments)
            raise
        self.check(step, arguments, outputs)
        step.store(self, outputs)

    def run_bound(self, step: PreparedLaunch, what: Hashable) -> Sequence[torch.Tensor] | None:
        """What a launch gives that was bound ahead for some purpose; None where it goes the usual
        way.
        """
        fused = step.fused.get(what)
        if fused is None or Fusion.mode == "never" or self.checks_nan or self.may_share(step):
            return None
        return fused.run(self)

    @property
    def checks_nan(self) -> bool:
        """Whether a profile asks for the first NaN."""
        return self.recorder is not None and self.recorder.checks_nan

    def check(
        self,
        step: PreparedLaunch,
        arguments: Sequence[torch.Tensor | int],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """Look for NaN, if a profile asks for it."""
        if self.checks_nan:
            rows, instances = step.launch.rows, step.instances
            check_launch(step.block, rows, arguments, outputs, instances, self.numbers)

    def name_launch(
        self, error: Exception, step: PreparedLaunch, arguments: Sequence[torch.Tensor | int]
    ) -> None:
        """Note on an error which block failed, and for which instance; raise the fault of a row."""
        if isinstance(error, HostOperationError):
            self.failed_instance = int(step.instances[error.rows[0]])
            source = error.source or step.block.node.source
            raise RowFault(error.fault, self.failed_instance, source) from None
        row, eager = note_launch(error, step.block, arguments, step.instances, self.numbers)
        self.failed_instance = None if row is None else int(step.instances[row])
        if eager is not error:
            raise eager from None
