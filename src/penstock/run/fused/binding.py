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

from penstock.plan.schedule import (
    Hosted,
    Integers,
    Launch,
    Operand,
    Picks,
    Shared,
    Span,
    concatenate,
    slots_of,
)
from penstock.run.arenas import Arena, Mirror
from penstock.run.batched import BlockInput
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.fused.form import FusedForm
from penstock.run.fused.indices import Indices
from penstock.run.fused.inductor import Compiled
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written, contiguous

if TYPE_CHECKING:
    from penstock.run.runner import Runner

log = logging.getLogger("penstock")

#: Slots up to which a set is faster than sorting.
FEW = 200

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
        return run_compiled(compiled, [find(where) for find in self.finds], self.form.name)

    def run_anyhow(self, where: Any) -> Sequence[torch.Tensor]:
        """Do the launch, by the same code uncompiled where it must be."""
        given = self.run(where)
        return self.form.code.run(*(find(where) for find in self.finds)) if given is None else given


def run_compiled(
    compiled: Compiled, tensors: list[torch.Tensor], name: str
) -> Sequence[torch.Tensor] | None:
    """What compiled code gives; None where the plain way must be taken."""
    if not contiguous(tensors):
        return None
    try:
        return compiled(tensors)
    except Exception as error:  # the plain way tells whose fault it is
        log.debug("%s failed: %s", name, error)
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
    key = (half, function, returned, *(_likeness(run, item) for item in launch.operands))
    key += tuple(_likeness(run, item) for item in launch.targets)
    forms = block.fused_forms
    if key not in forms:
        code = _code(run, launch, block, function, returned)
        forms[key] = None if code is None else known_form(block, code, half)
    form: FusedForm | None = forms[key]
    if form is None or not are_apart(launch):
        return None
    finds: list[Find] = []
    for operand, spec in zip(launch.operands, block.inputs, strict=True):
        if isinstance(operand, Span | Picks):
            device = torch.device(spec.device)
            if not _find_slots(run.arena(operand.arena), operand, device, indices, finds):
                return None
        elif isinstance(operand, Shared):
            finds.append(_uniform(operand.wire))
        else:
            finds.append(_hosted(operand, spec))
    for target in launch.targets:
        arena = run.arena(target.arena)
        if not _find_slots(arena, target, arena.device, indices, finds):
            return None
    return FusedLaunch(form, launch.rows, finds)


def _likeness(run: Runner, item: Operand) -> object:
    """What launches with the same code have in common."""
    if isinstance(item, Span | Picks):
        return run.arena(item.arena).kind if item.length is None else None
    return type(item)


def _code(
    run: Runner, launch: Launch, block: RunnableBlock, function: BatchFunction, returned: int
) -> LaunchCode | None:
    """The code of all launches like this one, if it can be compiled."""
    found = [_part(spec, operand) for spec, operand in zip(block.inputs, launch.operands)]
    parts = [part for part in found if part is not None]
    arenas = [run.arena(target.arena) for target in launch.targets]
    written = [Written(arena.dtype, arena.kind.shape, arena.device) for arena in arenas]
    devices = {part.device for part in parts} | {result.device for result in written}
    is_long = any(target.length is not None for target in launch.targets)
    if len(parts) != len(found) or len(devices) != 1 or is_long:
        return None
    return LaunchCode(function, tuple(parts), (*written, *[None] * returned))


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
    operands = [item for item in launch.operands if isinstance(item, Span | Picks)]
    for arena in {target.arena for target in launch.targets}:
        read = [slots_of(item) for item in operands if item.arena == arena]
        if not read:
            continue
        slots = concatenate(read)
        if any(_meet(target, slots) for target in launch.targets if target.arena == arena):
            return False
    return True


def _meet(target: Span | Picks, slots: Integers) -> bool:
    if isinstance(target, Span):
        after = slots - target.start
        return bool(((after >= 0) & (after < target.count)).any())
    if len(slots) < FEW:
        return not set(slots.tolist()).isdisjoint(target.slots.tolist())
    return bool(np.isin(slots, target.slots).any())


def _find_slots(
    arena: Arena, source: Span | Picks, device: torch.device, indices: Indices, finds: list[Find]
) -> bool:
    """Add how to find the chunk and the index of slots on a device; False where several chunks have
    them, or one that is elsewhere and is written to.
    """
    number, chunk = arena.number, arena.chunk_of(source)
    if chunk is None or (arena.device != device and not arena.is_given(chunk)):
        return False
    if arena.device == device:
        finds.append(lambda run: run.arenas[number].chunks[chunk])
    else:
        mirror = Mirror(number, chunk, device)
        finds.append(lambda run: run.mirror(mirror))
    finds.append(indices.of(source, device, arena.starts[chunk]))
    return True


def _uniform(wire: int) -> Find:
    return lambda run: run.uniform(wire)


def _hosted(operand: Operand, spec: BlockInput) -> Find:
    assert isinstance(operand, Hosted)
    values = torch.from_numpy(operand.values).to(spec.device, non_blocking=True)
    return lambda run: values
