"""Connects the code of a launch with one launch of a plan: which chunks, and which slots of them.

A launch that reads and writes the same slot of an arena, or whose slots lie in several chunks, is
not bound: it runs the plain way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from penstock.run.arenas import Mirror
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

#: What launches with the same code have in common; None where there is no code.
Likeness: TypeAlias = "list[object] | None"


class FusedLaunch:
    """One launch of a plan that may be run compiled."""

    __slots__ = ("chunks", "form", "is_found", "mirrors", "rows", "tensors", "wires")

    #: Found when all is known that it takes.
    form: FusedForm

    def __init__(self, rows: int) -> None:
        self.rows = rows
        #: What the code takes, in order: slots and host values, which are the same in every run,
        #: and None for what a run must say.
        self.tensors: list[Any] = []
        #: Whether slots are on their device, so that all are tensors now.
        self.is_found = True
        #: What a run must say: at which place which chunk of which arena, which of them on another
        #: device, and which uniform value.
        self.chunks: list[tuple[int, int, int]] = []
        self.mirrors: list[tuple[int, Mirror]] = []
        self.wires: list[tuple[int, int]] = []

    def run(self, run: Runner) -> Sequence[torch.Tensor] | None:
        """Do the launch: what is not written; or None, where it must be done the plain way."""
        compiled = self.form.ready(self.rows)
        if compiled is None:
            return None
        return run_compiled(compiled, self._tensors(run), self.form)

    def run_anyhow(self, run: Runner) -> Sequence[torch.Tensor]:
        """Do the launch, uncompiled where it must be."""
        return run_form(self.form, self.rows, self._tensors(run))

    def _tensors(self, run: Runner) -> list[torch.Tensor]:
        if not self.is_found:
            self.tensors = [find() if callable(find) else find for find in self.tensors]
            self.is_found = True
        tensors, arenas = self.tensors.copy(), run.arenas
        for place, number, chunk in self.chunks:
            tensors[place] = arenas[number].chunks[chunk]
        for place, wire in self.wires:
            tensors[place] = run.uniform(wire)
        for place, mirror in self.mirrors:
            tensors[place] = run.mirror(mirror)
        return tensors

    def take(self, run: Runner, launch: Launch, block: RunnableBlock, indices: Indices) -> Likeness:
        """Take what the code reads and writes; what launches with the same code have in common.
        None where there is no code: slots of several chunks, dynamic sizes, or slots on another
        device that are written to.
        """
        tensors, alike = self.tensors, list[object]()
        for item, device in zip((*launch.operands, *launch.targets), block.devices):
            kind = type(item)
            if kind is Span or kind is Picks:  # several times as fast as asking for a union
                arena = run.arena(item.arena)  # type: ignore[union-attr]
                starts = arena.starts
                chunk = 0 if len(starts) == 1 else arena.chunk_of(item)  # type: ignore[arg-type]
                if chunk is None or item.length is not None:  # type: ignore[union-attr]
                    return None
                if device is None or device == arena.device:
                    self.chunks.append((len(tensors), arena.number, chunk))
                elif arena.is_given(chunk):
                    self.mirrors.append((len(tensors), Mirror(arena.number, chunk, device)))
                else:
                    return None
                alike.append(arena.likeness)
                index = indices.find(item, device or arena.device, starts[chunk])  # type: ignore[arg-type]
                self.is_found = self.is_found and type(index) is torch.Tensor
                tensors += (None, index)
                continue
            alike.append(kind)
            if kind is Shared:
                self.wires.append((len(tensors), item.wire))  # type: ignore[union-attr]
                tensors.append(None)
            elif kind is Hosted:
                values = torch.from_numpy(item.values)  # type: ignore[union-attr]
                tensors.append(values.to(device, non_blocking=True))
            else:
                return None
        return alike


def run_form(form: FusedForm, rows: int, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """What the code of a launch gives, compiled or not."""
    compiled = form.ready(rows)
    given = None if compiled is None else run_compiled(compiled, tensors.copy(), form)
    return form.code.run(*tensors) if given is None else given


def run_compiled(
    compiled: Compiled, tensors: list[torch.Tensor], form: FusedForm
) -> Sequence[torch.Tensor] | None:
    """What compiled code gives; None where the plain way must be taken, before anything was done
    that it would do again.
    """
    if not contiguous(tensors):
        return None
    try:
        return compiled(tensors)
    except Exception as error:
        if not form.code.is_repeatable:
            raise
        log.debug("%s failed: %s", form.name, error)  # the plain way tells whose fault it is
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
    made = FusedLaunch(launch.rows)
    alike = made.take(run, launch, block, indices) if launch.rows else None
    if alike is None or not (run.keeps_apart or are_apart(launch)):
        return None
    key = (half, function, returned, *alike)
    forms = block.fused_forms
    if key not in forms:
        code = _code(run, launch, block, function, returned)
        forms[key] = None if code is None else known_form(block, code, half)
    if forms[key] is None:
        return None
    made.form = forms[key]
    return made


def _code(
    run: Runner, launch: Launch, block: RunnableBlock, function: BatchFunction, returned: int
) -> LaunchCode | None:
    """The code of all launches like this one, if it can be compiled."""
    given = zip(block.inputs, launch.operands, block.flat_inputs)
    found = [_part(spec, operand, is_flat=is_flat) for spec, operand, is_flat in given]
    parts = [part for part in found if part is not None]
    arenas = [run.arena(target.arena) for target in launch.targets]
    written = [Written(arena.dtype, arena.kind.shape, arena.device) for arena in arenas]
    devices = {part.device for part in parts} | {result.device for result in written}
    is_long = any(target.length is not None for target in launch.targets)
    if block.block.is_flat and any(device.type != "cpu" for device in devices):
        return None
    if len(parts) != len(found) or len(devices) != 1 or is_long:
        return None
    return LaunchCode(function, tuple(parts), (*written, *[None] * returned))


def known_form(block: RunnableBlock, code: LaunchCode, half: str) -> FusedForm:
    """The one form of a block for such code."""
    key = (half, code)
    form: FusedForm | None = block.fused_forms.get(key)
    if form is None:
        form = FusedForm(code, f"{block.name}.{half}", block.mark(half))
        block.fused_forms[key] = form
    return form


def _part(spec: BlockInput, operand: Operand, *, is_flat: bool) -> Part | None:
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
    return Part(Origin.GATHERED, spec.torch_dtype, shape, device, is_flat=is_flat)


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
