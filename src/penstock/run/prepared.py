"""Instructions made ready to be carried out, once for as often as they are run.

A prepared instruction knows its block, the chunks that it reads and writes, and its index tensors,
which are on their devices already. It refers to arenas by number and to chunks by position, never
to their memory: a plan that is kept and run again finds the same chunks in another run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from penstock.plan.native.decode import Records
from penstock.plan.schedule import (
    Chunk,
    Copy,
    Integers,
    Launch,
    Pad,
    Picks,
    Read,
    Span,
    Store,
    Unpad,
)
from penstock.profiling.records import LaunchDetails
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.faults import sizes_as_traced
from penstock.run.fused.binding import FusedLaunch, bind_launch
from penstock.run.fused.indices import Indices
from penstock.run.padder import Padder
from penstock.run.pieces import run_in_pieces
from penstock.run.slot_access import (
    Fetch,
    FetchTensor,
    Put,
    finding_operand,
    gathering,
    putting,
    putting_result,
)
from penstock.run.step_blocks import OpaqueBlock
from penstock.run.straight import Straightened

if TYPE_CHECKING:
    from penstock.run.runner import Runner


_AS_IT_IS = nullcontext()


def not_inferring() -> AbstractContextManager[object]:
    """What is made inside may serve runs that are differentiated."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _AS_IT_IS


@dataclass(slots=True, eq=False)
class PreparedLaunch:
    """A launch of a block."""

    launch: Launch
    block: RunnableBlock
    #: The instance of each row.
    instances: Integers
    #: The slots of this launch and others on their devices.
    indices: Indices
    #: How to gather operands and to write results, made ready when first needed.
    fetches: tuple[Fetch, ...] | None = None
    puts: tuple[Put, ...] | None = None
    #: The batched form, found when the launch is first run: sizes are part of the plan.
    function: BatchFunction | None = None
    #: What `penstock.autodiff` has found out about the launch, likewise, by what is asked of it.
    training: dict[Hashable, Any] = field(default_factory=dict)
    #: Operands that lie in inputs and need not be saved, likewise.
    lent: dict[Hashable, Any] = field(default_factory=dict)
    #: The launch as it may be run compiled, by what it is run for; None where it cannot be.
    fused: dict[Hashable, FusedLaunch | None] = field(default_factory=dict)
    #: The same in pieces of at most so many rows, for runs that hold little at a time.
    pieces: tuple[int, tuple[PreparedLaunch, ...]] | None = None
    #: What profiles tell of the launch, found when one has looked.
    details: LaunchDetails | None = None

    def fused_for(
        self, run: Runner, what: Hashable, bind: Callable[[Runner], FusedLaunch | None]
    ) -> FusedLaunch | None:
        """The launch as it may be run compiled for some purpose."""
        if what not in self.fused:
            with not_inferring():
                self.fused[what] = bind(run)
        return self.fused[what]

    def bind(self, run: Runner) -> FusedLaunch | None:
        """The launch as it may be run compiled where nothing is saved."""
        function = self.block.plain_function()
        if function is None:
            return None
        return bind_launch(run, self.launch, self.block, function, "inference", self.indices)

    def arguments(self, run: Runner) -> list[torch.Tensor | int]:
        """The operands, gathered."""
        if self.fetches is None:
            count = len(self.launch.operands)
            with not_inferring():
                find = (finding_operand(run, self.launch, self.block, k) for k in range(count))
                self.fetches = tuple(find)
        return [fetch(run) for fetch in self.fetches]

    def run(self, arguments: Sequence[torch.Tensor | int]) -> Sequence[torch.Tensor]:
        """The results for these operands."""
        if self.function is None:
            self.function = self.block.function_for(arguments)
        rows, most = self.launch.rows, self.block.most_rows
        if rows > most:
            return run_in_pieces(self.function, rows, most, self.block.inputs, arguments)
        return self.function(rows, *arguments)

    def store(self, run: Runner, outputs: Sequence[torch.Tensor]) -> None:
        """Write the results to their slots."""
        if self.puts is None:
            targets = self.launch.targets
            with not_inferring():
                self.puts = tuple(putting_result(run, self.block, target) for target in targets)
        try:
            for put, values in zip(self.puts, outputs, strict=True):
                put(run, values)
        except RuntimeError as error:
            raise sizes_as_traced(error, self.block, outputs) from None


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStore:
    """Host values that go to slots."""

    store: Store
    values: torch.Tensor
    put: Put


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCopy:
    """Values that go to other slots."""

    copy: Copy
    fetch: FetchTensor
    put: Put


class PreparedReceipt(PreparedCopy):
    """Values that have come from another device, once."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRead:
    """Values that are read back."""

    read: Read
    fetches: tuple[FetchTensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPadding:
    """Sequences that are padded, or padded ones that are taken apart."""

    padding: Pad | Unpad
    fetch: FetchTensor
    put: Put


Prepared: TypeAlias = PreparedLaunch | PreparedStore | PreparedCopy | PreparedPadding | PreparedRead


@dataclass(frozen=True, slots=True, eq=False)
class PreparedWindow:
    """Instructions that were planned together: arenas grow first."""

    growth: tuple[Chunk, ...]
    steps: tuple[Prepared, ...]
    #: The records that the steps were made of, one of each, where native code has planned them.
    records: Records | None = None
    #: The same in a row, by the purpose of runs.
    straight: dict[Hashable, Straightened] = field(default_factory=dict)


def prepare_store(run: Runner, item: Store) -> PreparedStore:
    """Bring host values to the device of their arena."""
    arena = run.arena(item.target.arena)
    values = torch.from_numpy(item.values).to(arena.device, non_blocking=True)
    return PreparedStore(item, values, putting(arena, item.target))


def prepare_copy(run: Runner, item: Copy) -> PreparedCopy:
    """Find both ends of a copy; several values may make up one of the target."""
    source, target = run.arena(item.source.arena), run.arena(item.target.arena)
    fetch = gathering(source, item.source)
    return PreparedCopy(item, fetch, putting(target, item.target, is_joined=True))


def prepare_receipt(run: Runner, item: Copy, values: torch.Tensor) -> PreparedReceipt:
    """The second half of a copy, whose values have come from another device."""
    target = run.arena(item.target.arena)
    return PreparedReceipt(item, lambda run: values, putting(target, item.target, is_joined=True))


def prepare_fetch(run: Runner, source: Span | Picks) -> FetchTensor:
    """Find the values of slots, for another process."""
    return gathering(run.arena(source.arena), source._replace(length=None))


def prepare_put(run: Runner, target: Span | Picks) -> Put:
    """Where values of another process go; several may make up one of the target."""
    return putting(run.arena(target.arena), target, is_joined=True)


def prepare_pad(run: Runner, item: Pad) -> PreparedPadding:
    """Find the elements of sequences, and their places among the padded ones."""
    source, target = run.arena(item.source.arena), run.arena(item.target.arena)
    fetch = gathering(source, item.source)
    padding = Padder(item.lengths, item.length, source.device)
    return PreparedPadding(item, lambda run: padding.pad(fetch(run)), putting(target, item.target))


def prepare_unpad(run: Runner, item: Unpad) -> PreparedPadding:
    """Find padded sequences, and the places of their own elements."""
    source, target = run.arena(item.source.arena), run.arena(item.target.arena)
    padding = Padder(item.lengths, item.length, target.device)
    number = source.number
    return PreparedPadding(
        item,
        lambda run: padding.unpad(run.arenas[number].chunks[0]),
        putting(target, item.target),
    )


def prepare_read(run: Runner, item: Read) -> PreparedRead:
    """Find what is read."""
    fetches = (gathering(run.arena(source.arena), source) for source in item.sources)
    return PreparedRead(item, tuple(fetches))


def is_repeatable(step: Prepared) -> bool:
    """Whether a step may run again."""
    if not isinstance(step, PreparedLaunch):
        return True
    return not isinstance(step.block, OpaqueBlock) or step.block.is_repeatable
