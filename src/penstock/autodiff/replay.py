"""Gradients that can be differentiated again: the tape is run once more under torch's autograd.

Only rows that a cotangent reaches are replayed, so that what nobody reads cannot spoil what somebody does. The result
is an ordinary autograd graph of the batched program; torch differentiates it as often as asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.autodiff.gradients import slots_of
from penstock.autodiff.tape import Page
from penstock.plan.schedule import Copy, Hosted, Integers, Picks, Shared, Sized, Span, Store

if TYPE_CHECKING:
    from penstock.autodiff.function import DifferentiableCall


class Ledger:
    """Who made the value in each slot: the number of a piece and the row in it."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self.piece = [np.full(capacity, -1, np.int64) for capacity in capacities]
        self.row = [np.zeros(capacity, np.int64) for capacity in capacities]
        self.pieces: list[torch.Tensor] = []

    def put(self, arena: int, slots: Integers, values: torch.Tensor) -> None:
        """The values of slots, one row each."""
        self.piece[arena][slots] = len(self.pieces)
        self.row[arena][slots] = np.arange(len(slots))
        self.pieces.append(values)

    def copy(self, arena: int, sources: Integers, targets: Integers) -> None:
        """Slots get the values of other slots."""
        self.piece[arena][targets] = self.piece[arena][sources]
        self.row[arena][targets] = self.row[arena][sources]

    def take(self, arena: int, slots: Integers) -> torch.Tensor:
        """The values of slots, connected to the pieces they come from."""
        owners, rows = self.piece[arena][slots], self.row[arena][slots]
        distinct, which = np.unique(owners, return_inverse=True)
        parts = [self.pieces[owner] for owner in distinct]
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        index = torch.from_numpy(starts[which.reshape(-1)] + rows)
        return joined.index_select(0, index.to(joined.device))


def live_rows(
    entries: Sequence[object], present: list[np.ndarray]  # type: ignore[type-arg]
) -> list[Integers | None]:
    """For each entry the rows that the marked slots depend on; None for entries without rows."""
    found: list[Integers | None] = []
    for entry in reversed(entries):
        if isinstance(entry, Page):
            found.append(_live_rows_of(entry, present))
            continue
        if isinstance(entry, Copy):
            targets, sources = slots_of(entry.target), slots_of(entry.source)
            held = present[entry.target.arena][targets]
            present[entry.target.arena][targets] = False
            present[entry.source.arena][sources[held]] = True
        found.append(None)
    return found[::-1]


def _live_rows_of(page: Page, present: list[np.ndarray]) -> Integers:  # type: ignore[type-arg]
    rows = page.launch.rows
    live = np.zeros(rows, np.bool_)
    for target in page.launch.targets:
        slots = slots_of(target)
        if len(slots):
            live |= present[target.arena][slots].reshape(rows, -1).any(axis=1)
            present[target.arena][slots] = False
    index = np.flatnonzero(live)
    for operand in page.launch.operands:
        if isinstance(operand, Span | Picks):
            slots = slots_of(operand)
            if len(slots):
                present[operand.arena][slots.reshape(rows, -1)[index].reshape(-1)] = True
    return index


def replay_gradients(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Gradients of the call's tensors, as an autograd graph of their own."""
    from penstock.autodiff.function import UniformGraph, output_gradients, result_slots

    run = made.run
    assert run is not None
    capacities = [space.end for space in run.machine.spaces]
    present = [np.zeros(capacity, np.bool_) for capacity in capacities]
    wanted: list[tuple[int, np.ndarray, torch.Tensor]] = []  # type: ignore[type-arg]
    for output, rows in output_gradients(made, grads).items():
        for instance, grad in enumerate(rows):
            if grad is not None:
                number, slots = result_slots(made, output, instance)
                present[number][slots] = True
                wanted.append((number, slots, grad))
    live = live_rows(run.tape.entries, present)
    tracked = {p.capture: t for p, t in zip(made.places, made.tensors) if p.capture is not None}
    uniforms = UniformGraph(made, tracked)
    ledger = Ledger(capacities)
    _put_inputs(made, ledger, uniforms)
    for entry, rows in zip(run.tape.entries, live, strict=True):
        if isinstance(entry, Page):
            assert rows is not None
            if len(rows):
                _replay_launch(entry, rows, ledger, uniforms)
        elif isinstance(entry, Copy):
            ledger.copy(entry.target.arena, slots_of(entry.source), slots_of(entry.target))
        elif isinstance(entry, Store):
            values = torch.from_numpy(entry.values)
            ledger.put(entry.target.arena, slots_of(entry.target), values)
    outputs = [ledger.take(number, slots).reshape(grad.shape) for number, slots, grad in wanted]
    flowing = [k for k, output in enumerate(outputs) if output.requires_grad]
    if not flowing:
        return [None] * len(made.tensors)
    return list(
        torch.autograd.grad(
            [outputs[k] for k in flowing],
            made.tensors,
            [wanted[k][2] for k in flowing],
            create_graph=True,
            allow_unused=True,
        )
    )


def _put_inputs(made: DifferentiableCall, ledger: Ledger, uniforms: object) -> None:
    from penstock.autodiff.function import UniformGraph, value_slots

    assert made.run is not None and isinstance(uniforms, UniformGraph)
    machine = made.run.machine
    for position, entry in enumerate(made.executable.graph.inputs):
        slots = machine.input_slots[position]
        if entry.slot is None or slots is None:
            continue
        if entry.number is None:
            assert entry.uniform is not None
            number, where = value_slots(machine, entry.slot, int(slots[0]))
            ledger.put(number, where, uniforms.value(entry.uniform.number).unsqueeze(0))
            continue
        column = made.columns[entry.number]
        for instance in range(made.count):
            number, where = value_slots(machine, entry.slot, int(slots[instance]))
            shape = machine.spaces[number].kind.shape
            ledger.put(number, where, column[instance].reshape(len(where), *shape))


def _replay_launch(page: Page, index: Integers, ledger: Ledger, uniforms: object) -> None:
    from penstock.autodiff.function import UniformGraph

    assert isinstance(uniforms, UniformGraph)
    launch, block = page.launch, page.block
    arguments: list[torch.Tensor | int] = []
    for position, operand in enumerate(launch.operands):
        if isinstance(operand, Shared):
            arguments.append(uniforms.value(operand.wire))
        elif isinstance(operand, Sized):
            arguments.append(operand.size)
        elif isinstance(operand, Hosted):
            device = block.inputs[position].device
            arguments.append(torch.from_numpy(operand.values[index]).to(device))
        else:
            arguments.append(_take_rows(page, position, operand, index, ledger))
    outputs = block.form(block.dynamic_sizes(arguments))(len(index), *arguments)
    for target, values in zip(launch.targets, outputs, strict=True):
        slots = slots_of(target).reshape(launch.rows, -1)[index].reshape(-1)
        if len(slots):
            shape = uniforms.run.machine.spaces[target.arena].kind.shape
            ledger.put(target.arena, slots, values.reshape(len(slots), *shape))


def _take_rows(
    page: Page, position: int, operand: Span | Picks, index: Integers, ledger: Ledger
) -> torch.Tensor:
    slots = slots_of(operand).reshape(page.launch.rows, -1)[index]
    kind = page.block.node.inputs[position].type
    if not slots.size:
        spec = page.block.inputs[position]
        shape = [0 if isinstance(size, str) else size for size in spec.shape]
        return torch.empty((len(index), *shape), dtype=spec.torch_dtype, device=spec.device)
    values = ledger.take(operand.arena, slots.reshape(-1))
    if page.block.block.is_flat and kind.is_sequence:  # type: ignore[union-attr]
        return values.unsqueeze(1)
    if operand.length is not None:
        return values.reshape(len(index), operand.length, *values.shape[1:])
    return values
