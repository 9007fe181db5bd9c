"""How values are found in slots, and written to slots: closures that are made once and run often.

A closure refers to arenas by number and to chunks by position, never to their memory, so it serves
every run of the same plan. Slots that lie in one chunk are a view where they are consecutive, and
are selected by an index tensor that is on its device already otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from penstock.plan.schedule import Hosted, Launch, Picks, Shared, Sized, Span, slot_count
from penstock.run.arenas import Arena, Mirror
from penstock.run.blocks import RunnableBlock

if TYPE_CHECKING:
    from penstock.run.runner import Runner

#: Finds an operand in a run.
Fetch: TypeAlias = "Callable[[Runner], torch.Tensor | int]"
FetchTensor: TypeAlias = "Callable[[Runner], torch.Tensor]"
#: Writes values to their slots in a run.
Put: TypeAlias = "Callable[[Runner, torch.Tensor], None]"


_device = cache(torch.device)


def finding_operand(run: Runner, launch: Launch, block: RunnableBlock, position: int) -> Fetch:
    """How to find an operand of a launch, [rows, *shape] where it has rows."""
    operand = launch.operands[position]
    if isinstance(operand, Shared):
        wire = operand.wire
        return lambda run: run.uniform(wire)
    if isinstance(operand, Sized):
        size = operand.size
        return lambda run: size
    spec = block.inputs[position]
    if isinstance(operand, Hosted):
        values = torch.from_numpy(operand.values)
        if spec.device != "cpu":
            values = values.to(spec.device, non_blocking=True)
        return lambda run: values
    arena = run.arena(operand.arena)
    device = _device(spec.device)
    is_here = arena.device == device
    fetch = gathering(arena, operand) if is_here else _gathering_on(device, arena, operand)
    if is_here and device.type == "cpu" and block.runs_on("cuda"):
        fetch = _pinned(fetch)
    if operand.length is not None:
        shape = (launch.rows, operand.length, *arena.kind.shape)
        return lambda run: fetch(run).view(shape)
    if block.flat_inputs[position]:
        return lambda run: fetch(run).unsqueeze(1)
    return fetch


def gathering(arena: Arena, source: Span | Picks) -> FetchTensor:
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


def _gathering_on(device: torch.device, arena: Arena, source: Span | Picks) -> FetchTensor:
    """The same on another device; inputs travel there once, as they are."""
    chunk = arena.chunk_of(source)
    if chunk is None or not arena.is_given(chunk):
        fetch = gathering(arena, source)
        return lambda run: fetch(run).to(device)
    mirror, start = Mirror(arena.number, chunk, device), arena.starts[chunk]
    if isinstance(source, Span):
        first, end = source.start - start, source.start - start + source.count
        return lambda run: run.mirror(mirror)[first:end]
    index = arena.index(source.slots - start).to(device, non_blocking=True)
    return lambda run: run.mirror(mirror).index_select(0, index)


def putting_result(run: Runner, block: RunnableBlock, target: Span | Picks) -> Put:
    """How to write a result of a launch."""
    is_joined = target.length is not None or block.block.is_flat
    return putting(run.arena(target.arena), target._replace(length=None), is_joined=is_joined)


def putting(arena: Arena, target: Span | Picks, *, is_joined: bool = False) -> Put:
    """How to write values to slots; `is_joined`: they come in another shape."""
    write = _write(arena, target)
    if not is_joined:
        return write
    shape = (slot_count(target), *arena.kind.shape)
    return lambda run, values: write(run, values.reshape(shape))


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
