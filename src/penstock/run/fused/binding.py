"""Connects the code of a launch with one launch of a plan: which chunks, and which slots of them.

A launch that reads and writes the same slot of an arena, or whose slots lie in several chunks, is
not bound: it runs the plain way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from penstock.plan.schedule import Hosted, Launch, Operand, Picks, Shared, Span
from penstock.run.arenas import Arena
from penstock.run.batched import BlockInput
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.fused.form import FusedForm
from penstock.run.fused.indices import Indices
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written, contiguous

if TYPE_CHECKING:
    from penstock.run.runner import Runner

log = logging.getLogger("penstock")

#: Finds a tensor in a run, or in a backward pass.
Find: TypeAlias = Callable[[Any], torch.Tensor]


class FusedLaunch:
    """One launch of a plan, or its backward half, that may be run compiled."""

    __slots__ = ("finds", "form", "rows")

    def __init__(self, form: FusedForm, rows: int, finds: Sequence[Find]) -> None:
        self.form = form
        self.rows = rows
        self.finds = tuple(finds)

    def run(self, where: Any) -> Sequence[torch.Tensor] | None:
        """Do the launch: what is not written; or None, where it must be done the plain way."""
        compiled = self.form.ready(self.rows)
        if compiled is None:
            return None
        tensors = [find(where) for find in self.finds]
        if not contiguous(tensors):
            return None
        try:
            return compiled(tensors)
        except Exception as error:  # the plain way tells whose fault it is
            log.debug("%s failed: %s", self.form.name, error)
            return None


def bind_launch(
    run: Runner,
    launch: Launch,
    block: RunnableBlock,
    function: BatchFunction,
    half: str,
    indices: Indices,
    returned: int = 0,
) -> FusedLaunch | None:
    """A launch whose function gives the block's results and then `returned` more values."""
    found = [_part(spec, operand) for spec, operand in zip(block.inputs, launch.operands)]
    parts = [part for part in found if part is not None]
    arenas = [run.arena(target.arena) for target in launch.targets]
    written = [Written(arena.dtype, arena.kind.shape, arena.device) for arena in arenas]
    devices = {part.device for part in parts} | {result.device for result in written}
    if len(parts) != len(found) or len(devices) != 1 or not are_apart(launch):
        return None
    finds: list[Find] = []
    for operand, spec in zip(launch.operands, block.inputs, strict=True):
        if isinstance(operand, Span | Picks):
            if not _find_slots(run.arena(operand.arena), operand, indices, finds):
                return None
        elif isinstance(operand, Shared):
            finds.append(_uniform(operand.wire))
        else:
            finds.append(_hosted(operand, spec))
    for arena, target in zip(arenas, launch.targets, strict=True):
        if target.length is not None or not _find_slots(arena, target, indices, finds):
            return None
    code = LaunchCode(function, tuple(parts), (*written, *[None] * returned))
    return FusedLaunch(known_form(block, code, half), launch.rows, finds)


def known_form(block: RunnableBlock, code: LaunchCode, half: str) -> FusedForm:
    """The one form of a block for such code."""
    key = (half, code)
    form: FusedForm | None = block.fused_forms.get(key)
    if form is None:
        form = block.fused_forms[key] = FusedForm(code, f"{block.name}.{half}")
    return form


def _part(spec: BlockInput, operand: Operand) -> Part | None:
    """What an operand is for all launches alike; None for a dynamic size."""
    device = torch.device(spec.device)
    shape = tuple(size for size in spec.shape if isinstance(size, int))
    if len(shape) != len(spec.shape) or spec.kind == "size":
        return None
    if isinstance(operand, Shared):
        return Part(Origin.UNIFORM, spec.torch_dtype, shape, device)
    if isinstance(operand, Hosted):
        return Part(Origin.GIVEN, spec.torch_dtype, shape, device)
    if not isinstance(operand, Span | Picks) or operand.length is not None:
        return None
    return Part(Origin.GATHERED, spec.torch_dtype, shape, device)


def are_apart(launch: Launch) -> bool:
    """Whether no slot is both read and written."""
    for target in launch.targets:
        for operand in launch.operands:
            if isinstance(operand, Span | Picks) and operand.arena == target.arena:
                low, high = _bounds(operand)
                first, last = _bounds(target)
                if low <= last and first <= high and _meet(operand, target):
                    return False
    return True


def _bounds(source: Span | Picks) -> tuple[int, int]:
    if isinstance(source, Span):
        return source.start, source.start + source.count - 1
    return int(source.slots.min()), int(source.slots.max())


def _meet(one: Span | Picks, other: Span | Picks) -> bool:
    first, second = (
        np.arange(each.start, each.start + each.count) if isinstance(each, Span) else each.slots
        for each in (one, other)
    )
    return bool(np.isin(first, second).any())


def _find_slots(arena: Arena, source: Span | Picks, indices: Indices, finds: list[Find]) -> bool:
    """Add how to find the chunk and the index of slots; False where several chunks have them."""
    number, chunk = arena.number, arena.chunk_of(source)
    if chunk is None:
        return False
    finds.append(lambda run: run.arenas[number].chunks[chunk])
    finds.append(indices.of(source, arena.device, arena.starts[chunk]))
    return True


def _uniform(wire: int) -> Find:
    return lambda run: run.uniform(wire)


def _hosted(operand: Operand, spec: BlockInput) -> Find:
    assert isinstance(operand, Hosted)
    values = torch.from_numpy(operand.values).to(spec.device, non_blocking=True)
    return lambda run: values
