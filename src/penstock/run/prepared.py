"""Instructions made ready to be carried out, once for as often as they are run.

A prepared instruction knows its block, the chunks that it reads and writes, and its index tensors,
which are on their devices already. It refers to arenas by number and to chunks by position, never
to their memory: a plan that is kept and run again finds the same chunks in another run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from penstock.plan.schedule import (
    Chunk,
    Copy,
    Hosted,
    Integers,
    Launch,
    Pad,
    Picks,
    Read,
    Shared,
    Sized,
    Span,
    Store,
    Unpad,
    slot_count,
)
from penstock.profiling.records import LaunchDetails
from penstock.run.arenas import Arena, Mirror
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.faults import sizes_as_traced
from penstock.run.fused.binding import FusedLaunch, bind_launch
from penstock.run.fused.indices import Indices
from penstock.run.padder import Padder

if TYPE_CHECKING:
    from penstock.run.runner import Runner

#: Finds an operand in a run.
Fetch: TypeAlias = "Callable[[Runner], torch.Tensor | int]"
FetchTensor: TypeAlias = "Callable[[Runner], torch.Tensor]"
#: Writes values to their slots in a run.
Put: TypeAlias = "Callable[[Runner, torch.Tensor], None]"


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
    #: What profiles tell of the launch, found when one has looked.
    details: LaunchDetails | None = None

    def fused_for(
        self, run: Runner, what: Hashable, bind: Callable[[Runner], FusedLaunch | None]
    ) -> FusedLaunch | None:
        """The launch as it may be run compiled for some purpose."""
        if what not in self.fused:
            with torch.inference_mode(False):  # runs that are differentiated may use it
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
            with torch.inference_mode(False):
                find = (_operand(run, self.launch, self.block, k) for k in range(count))
                self.fetches = tuple(find)
        return [fetch(run) for fetch in self.fetches]

    def run(self, arguments: Sequence[torch.Tensor | int]) -> Sequence[torch.Tensor]:
        """The results for these operands."""
        if self.function is None:
            self.function = self.block.function_for(arguments)
        return self.function(self.launch.rows, *arguments)

    def store(self, run: Runner, outputs: Sequence[torch.Tensor]) -> None:
        """Write the results to their slots."""
        if self.puts is None:
            targets = self.launch.targets
            with torch.inference_mode(False):
                self.puts = tuple(_target(run, self.block, target) for target in targets)
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


def prepare_store(run: Runner, item: Store) -> PreparedStore:
    """Bring host values to the device of their arena."""
    arena = run.arena(item.target.arena)
    values = torch.from_numpy(item.values).to(arena.device, non_blocking=True)
    return PreparedStore(item, values, _put(arena, item.target))


def prepare_copy(run: Runner, item: Copy) -> PreparedCopy:
    """Find both ends of a copy; several values may make up one of the target."""
    source, target = run.arena(item.source.arena), run.arena(item.target.arena)
    fetch = _gather(source, item.source)
    return PreparedCopy(item, fetch, _put(target, item.target, is_joined=True))


def prepare_receipt(run: Runner, item: Copy, values: torch.Tensor) -> PreparedReceipt:
    """The second half of a copy, whose values have come from another device."""
    target = run.arena(item.target.arena)
    return PreparedReceipt(item, lambda run: values, _put(target, item.target, is_joined=True))


def prepare_fetch(run: Runner, source: Span | Picks) -> FetchTensor:
    """Find the values of slots, for another process."""
    return _gather(run.arena(source.arena), source._replace(length=None))


def prepare_put(run: Runner, target: Span | Picks) -> Put:
    """Where values of another process go; several may make up one of the target."""
    return _put(run.arena(target.arena), target, is_joined=True)


def prepare_pad(run: Runner, item: Pad) -> PreparedPadding:
    """Find the elements of sequences, and their places among the padded ones."""
    source, target = run.arena(item.source.arena), run.arena(item.target.arena)
    fetch = _gather(source, item.source)
    padding = Padder(item.lengths, item.length, source.device)
    return PreparedPadding(item, lambda run: padding.pad(fetch(run)), _put(target, item.target))


def prepare_unpad(run: Runner, item: Unpad) -> PreparedPadding:
    """Find padded sequences, and the places of their own elements."""
    source, target = run.arena(item.source.arena), run.arena(item.target.arena)
    padding = Padder(item.lengths, item.length, target.device)
    number = source.number
    return PreparedPadding(
        item,
        lambda run: padding.unpad(run.arenas[number].chunks[0]),
        _put(target, item.target),
    )


def prepare_read(run: Runner, item: Read) -> PreparedRead:
    """Find what is read."""
    fetches = (_gather(run.arena(source.arena), source) for source in item.sources)
    return PreparedRead(item, tuple(fetches))


# ---- operands ------------------------------------------------------------------------------------


def _operand(run: Runner, launch: Launch, block: RunnableBlock, position: int) -> Fetch:
    operand = launch.operands[position]
    if isinstance(operand, Shared):
        wire = operand.wire
        return lambda run: run.uniform(wire)
    if isinstance(operand, Sized):
        size = operand.size
        return lambda run: size
    spec = block.inputs[position]
    if isinstance(operand, Hosted):
        values = torch.from_numpy(operand.values).to(spec.device, non_blocking=True)
        return lambda run: values
    arena = run.arena(operand.arena)
    device = torch.device(spec.device)
    is_here = arena.device == device
    fetch = _gather(arena, operand) if is_here else _gather_on(device, arena, operand)
    if is_here and device.type == "cpu" and block.runs_on("cuda"):
        fetch = _pinned(fetch)
    if operand.length is not None:
        shape = (launch.rows, operand.length, *arena.kind.shape)
        return lambda run: fetch(run).view(shape)
    kind = block.node.inputs[position].type
    if block.block.is_flat and len(spec.shape) and kind.is_sequence:  # type: ignore[union-attr]
        return lambda run: fetch(run).unsqueeze(1)
    return fetch


def _gather(arena: Arena, source: Span | Picks) -> FetchTensor:
    """How to find the values of slots, [count, *shape]."""
    number, chunk = arena.number, arena.chunk_of(source)
    if chunk is None:
        plain = source._replace(length=None)
        return lambda run: run.arenas[number].gather(plain)
    start = arena.starts[chunk]
    if isinstance(source, Span):
        first, end = source.start - start, source.start - start + source.count
        return lambda run: run.arenas[number].chunks[chunk][first:end]
    index = arena.index(source.slots - start if start else source.slots)
    return lambda run: run.arenas[number].chunks[chunk].index_select(0, index)


def _pinned(fetch: FetchTensor) -> FetchTensor:
    """Rows of the host for a block that moves them to its device: so it need not wait for that."""
    return lambda run: fetch(run).pin_memory()


def _gather_on(device: torch.device, arena: Arena, source: Span | Picks) -> FetchTensor:
    """The same on another device; inputs travel there once, as they are."""
    chunk = arena.chunk_of(source)
    if chunk is None or not arena.is_given(chunk):
        fetch = _gather(arena, source)
        return lambda run: fetch(run).to(device)
    mirror, start = Mirror(arena.number, chunk, device), arena.starts[chunk]
    if isinstance(source, Span):
        first, end = source.start - start, source.start - start + source.count
        return lambda run: run.mirror(mirror)[first:end]
    index = arena.index(source.slots - start).to(device, non_blocking=True)
    return lambda run: run.mirror(mirror).index_select(0, index)


# ---- targets -------------------------------------------------------------------------------------


def _target(run: Runner, block: RunnableBlock, target: Span | Picks) -> Put:
    is_joined = target.length is not None or block.block.is_flat
    return _put(run.arena(target.arena), target._replace(length=None), is_joined=is_joined)


def _put(arena: Arena, target: Span | Picks, *, is_joined: bool = False) -> Put:
    """How to write values to slots; `is_joined`: they come in another shape."""
    put = _write(arena, target)
    if not is_joined:
        return put
    shape = (slot_count(target), *arena.kind.shape)
    return lambda run, values: put(run, values.reshape(shape))


def _write(arena: Arena, target: Span | Picks) -> Put:
    number = arena.number
    if isinstance(target, Span) and target.is_whole:
        return lambda run, values: run.arena(number).hold(values)
    chunk = arena.chunk_of(target)
    if chunk is None:
        return lambda run, values: run.arenas[number].write(target, values)
    start = arena.starts[chunk]
    if isinstance(target, Span):
        first, end = target.start - start, target.start - start + target.count

        def write(run: Runner, values: torch.Tensor) -> None:
            run.arenas[number].chunks[chunk][first:end].copy_(values)

        return write
    index = arena.index(target.slots - start)

    def scatter(run: Runner, values: torch.Tensor) -> None:
        run.arenas[number].chunks[chunk].index_copy_(0, index, values)

    return scatter
