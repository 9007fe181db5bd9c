"""Describes launches for profiles: operands and where they come from, results, device, memory."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from penstock.plan.schedule import (
    Hosted,
    Launch,
    Operand,
    Picks,
    Shared,
    Sized,
    Span,
    slot_count,
)
from penstock.profiling.records import CallRecord, LaunchDetails

if TYPE_CHECKING:
    from penstock.run.arenas import Arena
    from penstock.run.runner import Runner


def describe(run: Runner, launch: Launch) -> LaunchDetails:
    """What a launch ran on."""
    block = run.blocks[launch.block]
    operands = [_operand(run, operand, launch.rows) for operand in launch.operands]
    shapes = tuple(shape for shape, _, _ in operands)
    return LaunchDetails(
        shapes,
        sources=tuple(source for _, source, _ in operands),
        gathered_bytes=sum(size for _, _, size in operands),
        written_bytes=_written(run, launch),
        unbatched=block.unbatched,
        padding=block.padding_share(launch, shapes),
        obstacle=block.obstacle,
    )


def describe_backward(run: Runner, launch: Launch, rows: int) -> LaunchDetails:
    """The operands of a backward half are the cotangents of the results."""
    shapes = tuple([(rows, *run.kind(target.arena).shape) for target in launch.targets])
    return LaunchDetails(shapes, ("gather",) * len(shapes))


def note_memory(run: Runner, call: CallRecord) -> None:
    """The bytes that a call holds when all its launches were made."""
    chunks = [chunk for arena in run.arenas for chunk in arena.chunks]
    call.arena_bytes = max(call.arena_bytes, sum(chunk.nbytes for chunk in chunks))
    call.saved_bytes = max(call.saved_bytes, run.saved_bytes())
    for device in {chunk.device for chunk in chunks if chunk.is_cuda}:
        call.peak_bytes[str(device)] = torch.cuda.max_memory_allocated(device)


def _written(run: Runner, launch: Launch) -> int:
    """The bytes of the results."""
    arenas = ((run.arena(target.arena), target) for target in launch.targets)
    return sum(slot_count(target) * _bytes_of_slot(arena) for arena, target in arenas)


def _bytes_of_slot(arena: Arena) -> int:
    return prod(arena.kind.shape) * arena.dtype.itemsize


def _operand(run: Runner, operand: Operand, rows: int) -> tuple[tuple[int, ...], str, int]:
    """The shape of an operand, where it comes from, and the bytes gathered for it."""
    if isinstance(operand, Sized):
        return (), "size", 0
    if isinstance(operand, Shared):
        return tuple(run.uniform(operand.wire).shape), "shared", 0
    if isinstance(operand, Hosted):
        return operand.values.shape, "host", 0
    arena = run.arena(operand.arena)
    count, inner = slot_count(operand), arena.kind.shape
    shape = (count, *inner) if operand.length is None else (rows, operand.length, *inner)
    if _is_view(arena, operand):
        return shape, "view", 0
    return shape, "gather", count * _bytes_of_slot(arena)


def _is_view(arena: Arena, source: Span | Picks) -> bool:
    """Whether the slots are consecutive in one chunk."""
    if isinstance(source, Picks):
        return False
    end = source.start + source.count
    chunks = zip(arena.starts, arena.chunks, strict=True)
    return not source.count or any(
        start <= source.start and end <= start + chunk.shape[0] for start, chunk in chunks
    )


def device_of(run: Runner, launch: Launch) -> str:
    """The device that the launch was placed on, or else that of what it writes."""
    placed = run.blocks[launch.block].block.device
    if placed is not None and placed.name is not None:
        return placed.name
    return run.kind(launch.targets[0].arena).device if launch.targets else "cpu"
