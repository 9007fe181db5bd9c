"""Gradients that can be differentiated again: the tape is run once more under torch's autograd.

Only rows that a cotangent reaches are replayed, so that what nobody reads cannot spoil what
somebody does. The result is an ordinary autograd graph of the batched program; torch differentiates
it as often as asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.call import DifferentiableCall, value_slots
from penstock.autodiff.gradients import slots_of
from penstock.autodiff.tape import Page, check_version
from penstock.autodiff.uniforms import UniformGraph
from penstock.calls.autocast import autocast_as
from penstock.plan.schedule import Copy, Hosted, Integers, Picks, Shared, Sized, Span, Store

Marks = list[npt.NDArray[np.bool_]]


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


def live_rows(entries: Sequence[object], present: Marks) -> list[Integers | None]:
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
            chosen = sources.reshape(len(targets), -1)[held].reshape(-1)
            present[entry.source.arena][chosen] = True
        found.append(None)
    return found[::-1]


def _live_rows_of(page: Page, present: Marks) -> Integers:
    live = np.zeros(page.rows, np.bool_)
    for target in page.launch.targets:
        slots = slots_of(target)
        if len(slots):
            live |= present[target.arena][slots].reshape(page.rows, -1).any(axis=1)
            present[target.arena][slots] = False
    index = np.flatnonzero(live)
    for operand in page.launch.operands:
        if isinstance(operand, Span | Picks):
            slots = slots_of(operand)
            if len(slots):
                present[operand.arena][slots.reshape(page.rows, -1)[index].reshape(-1)] = True
    return index


def replay_gradients(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None], keep: bool
) -> list[torch.Tensor | None]:
    """Gradients of the call's tensors, as an autograd graph of their own."""
    wanted = [item for item in made.cotangents(grads) if len(item[1])]
    replay = Replay(made, wanted)
    for page, rows in replay.live_pages():
        if page.form is not None:
            page.use(rows, is_last=not keep)
            page.release()
    replay.carry_out()
    outputs = [replay.ledger.take(n, slots).reshape(grad.shape) for n, slots, grad in wanted]
    flowing = [k for k, output in enumerate(outputs) if output.requires_grad]
    if not flowing:
        return [None] * len(made.tensors)
    return list(
        torch.autograd.grad(
            [outputs[k] for k in flowing],
            replay.tensors,
            [wanted[k][2] for k in flowing],
            create_graph=True,
            allow_unused=True,
        )
    )


class Replay:
    """The tape of a call run again, for the rows that some results depend on."""

    def __init__(
        self,
        made: DifferentiableCall,
        wanted: Sequence[tuple[int, Integers, object]],
        end: int | None = None,
    ) -> None:
        self.made = made
        self.run = made.run
        #: The tape, or its first entries: the wanted slots are those at their end.
        self.entries = made.run.tape.entries[:end]
        for number, version in made.run.versions.items():
            check_version(made.run.uniform(number), version)
        #: The call's tensors under names of their own: one tensor may come in many places, or
        #: depend on another.
        self.tensors = [tensor.view_as(tensor) for tensor in made.tensors]
        capacities = [space.end for space in self.run.machine.spaces]
        present = [np.zeros(capacity, np.bool_) for capacity in capacities]
        for number, slots, _ in wanted:
            present[number][slots] = True
        self.live = live_rows(self.entries, present)
        self.ledger = Ledger(capacities)
        named = list(zip(made.places, self.tensors, strict=True))
        captures = {p.capture: tensor for p, tensor in named if p.capture is not None}
        self.uniforms = UniformGraph(self.run, captures)
        self.columns = {(p.column, p.instance): tensor for p, tensor in named}
        self._put_inputs()

    def live_pages(self) -> list[tuple[Page, Integers]]:
        """The launches with live rows, and those rows."""
        entries = zip(self.entries, self.live, strict=True)
        return [
            (entry, rows)
            for entry, rows in entries
            if isinstance(entry, Page) and rows is not None and len(rows)
        ]

    def carry_out(self, end: int | None = None) -> None:
        """Go through the entries, up to the one with this number."""
        for entry, rows in zip(self.entries[:end], self.live[:end], strict=True):
            self._step(entry, rows)

    def _step(self, entry: Page | Copy | Store, rows: Integers | None) -> None:
        """Carry out one entry of the tape."""
        if isinstance(entry, Page):
            if rows is not None and len(rows):
                self._launch(entry, rows)
        elif isinstance(entry, Copy):
            self._copy(entry)
        else:
            device = self.run.machine.spaces[entry.target.arena].kind.device
            values = torch.from_numpy(entry.values).to(device)
            self.ledger.put(entry.target.arena, slots_of(entry.target), values)

    def _copy(self, entry: Copy) -> None:
        sources, targets = slots_of(entry.source), slots_of(entry.target)
        if entry.source.arena == entry.target.arena:
            self.ledger.copy(entry.target.arena, sources, targets)
            return
        made = self.ledger.piece[entry.source.arena][sources] >= 0
        chosen = made.reshape(len(targets), -1).all(axis=1)
        if chosen.any():
            picked = sources.reshape(len(targets), -1)[chosen].reshape(-1)
            shape = self.run.machine.spaces[entry.target.arena].kind.shape
            values = self.ledger.take(entry.source.arena, picked)
            whole = values.reshape(int(chosen.sum()), *shape)
            self.ledger.put(entry.target.arena, targets[chosen], whole)

    def arguments(self, page: Page, rows: Integers) -> list[torch.Tensor | int]:
        """The operands of some rows of a launch."""
        found: list[torch.Tensor | int] = []
        for position, operand in enumerate(page.launch.operands):
            if isinstance(operand, Shared):
                found.append(self._uniform(operand.wire))
            elif isinstance(operand, Sized):
                found.append(operand.size)
            elif isinstance(operand, Hosted):
                device = page.block.inputs[position].device
                found.append(torch.from_numpy(operand.values[rows]).to(device))
            else:
                found.append(self._take(page, position, operand, rows))
        return found

    def _uniform(self, number: int) -> torch.Tensor:
        with autocast_as(self.run.executable.autocast):
            return self.uniforms.value(number)

    def _launch(self, page: Page, rows: Integers) -> None:
        arguments = self.arguments(page, rows)
        form = page.block.form(page.block.dynamic_sizes(arguments))
        outputs = form(len(rows), *arguments)
        for target, values in zip(page.launch.targets, outputs, strict=True):
            slots = slots_of(target).reshape(page.rows, -1)[rows].reshape(-1)
            if len(slots):
                shape = self.run.machine.spaces[target.arena].kind.shape
                self.ledger.put(target.arena, slots, values.reshape(len(slots), *shape))

    def _take(
        self, page: Page, position: int, operand: Span | Picks, rows: Integers
    ) -> torch.Tensor:
        slots = slots_of(operand).reshape(page.rows, -1)[rows]
        if not slots.size:
            spec = page.block.inputs[position]
            shape = [0 if isinstance(size, str) else size for size in spec.shape]
            return torch.empty((len(rows), *shape), dtype=spec.torch_dtype, device=spec.device)
        values = self.ledger.take(operand.arena, slots.reshape(-1))
        kind = page.block.node.inputs[position].type
        if page.block.block.is_flat and kind.is_sequence:  # type: ignore[union-attr]
            return values.unsqueeze(1)
        if operand.length is not None:
            return values.reshape(len(rows), operand.length, *values.shape[1:])
        return values

    def _put_inputs(self) -> None:
        machine = self.run.machine
        for position, entry in enumerate(self.made.executable.graph.inputs):
            values = machine.input_slots[position]
            if entry.slot is None or values is None:
                continue
            if entry.number is None:
                assert entry.uniform is not None
                number, slots = value_slots(machine, entry.slot, values[:1])
                self.ledger.put(number, slots, self._uniform(entry.uniform.number).unsqueeze(0))
                continue
            for instance in range(self.made.count):
                value = values[instance : instance + 1]
                number, slots = value_slots(machine, entry.slot, value)
                rows = self._input(entry.number, instance)
                shape = machine.spaces[number].kind.shape
                self.ledger.put(number, slots, rows.reshape(len(slots), *shape))

    def _input(self, column: int, instance: int) -> torch.Tensor:
        whole = self.columns.get((column, None))
        if whole is not None:
            return whole[instance]
        own = self.columns.get((column, instance))
        return self.made.columns[column][instance] if own is None else own
