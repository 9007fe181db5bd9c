"""Gradients that can be differentiated again: the tape is run once more under torch's autograd.

Only rows that a cotangent reaches are replayed, grouped by which results have one, so that what
nobody reads cannot spoil what somebody does. The result is an ordinary autograd graph of the
batched program; torch differentiates it as often as asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.autodiff.bounded.graphs import BoundedGraph
from penstock.autodiff.ends import Ends, FindUniform, Located
from penstock.autodiff.joint import Pattern
from penstock.autodiff.live_rows import Group, Marks, live_rows, with_rest
from penstock.autodiff.padding import element_slots, rows_with_any
from penstock.autodiff.page import Page
from penstock.autodiff.pieces import Pieces
from penstock.autodiff.tape import Entry
from penstock.errors import RepetitionError, report
from penstock.plan.schedule import (
    Copy,
    Hosted,
    Integers,
    Pad,
    Picks,
    Shared,
    Sized,
    Span,
    Unpad,
    slots_of,
)
from penstock.run.padder import Padder
from penstock.run.step_blocks import OpaqueBlock


def replay_gradients(
    ends: Ends,
    grads: Sequence[torch.Tensor | None],
    keep: bool,
    graph: BoundedGraph | None = None,
) -> list[torch.Tensor | None]:
    """Gradients of the tensors at the start, as an autograd graph of their own; what torch saves
    for it goes to `graph`, if given.
    """
    wanted = [item for item in ends.cotangents(grads) if len(item[1])]
    replay = Replay(ends, wanted)
    replay.use_pages(is_last=not keep)
    if graph is None:
        return _gradients_of(replay, wanted)
    replay.lend(graph)
    with graph.saving():
        return _gradients_of(replay, wanted, graph)


def _gradients_of(
    replay: Replay, wanted: Sequence[Located], graph: BoundedGraph | None = None
) -> list[torch.Tensor | None]:
    replay.carry_out()
    outputs = [replay.pieces.take(n, slots).reshape(grad.shape) for n, slots, grad in wanted]
    flowing = [k for k, output in enumerate(outputs) if output.requires_grad]
    if not flowing:
        return [None] * len(replay.tensors)
    if graph is not None:
        graph.turn()
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
    """A tape run again, for the rows that some results depend on."""

    def __init__(
        self,
        ends: Ends,
        wanted: Sequence[tuple[int, Integers, object]],
        end: int | None = None,
    ) -> None:
        #: The tape, or its first entries: the wanted slots are those at their end.
        self.entries = ends.entries[:end]
        #: The tensors at the start under names of their own: one tensor may come in many places, or
        #: depend on another. Their gradients may be sparse, which those of a view may not.
        self.tensors = [torch.ops.aten.alias.default(tensor) for tensor in ends.tensors]
        extents = ends.run.extents()
        self.kinds = [kind for kind, _ in extents]
        capacities = [capacity for _, capacity in extents]
        self.wanted = wanted
        #: The rows to run, and those of them through which gradients flow.
        self.live = self._find_live(self._marked(capacities), is_flowing=False)
        self.flowing = self._find_live(self._marked(capacities), is_flowing=True)
        self.pieces = Pieces(capacities)
        self.uniform: FindUniform = ends.uniforms(self.tensors)
        for number, slots, values in ends.inputs(self.tensors, self.uniform):
            whole = values.reshape(len(slots), *self.kinds[number].shape)
            self.pieces.put(number, slots, whole)

    def lend(self, graph: BoundedGraph) -> None:
        """What was there before the replay is not the graph's."""
        for values in (*self.tensors, *self.pieces.tensors.values()):
            graph.lend(values)
        find = self.uniform
        self.uniform = lambda number: graph.lend(find(number))

    def _marked(self, capacities: Sequence[int]) -> Marks:
        """The wanted slots."""
        present = [np.zeros(capacity, np.bool_) for capacity in capacities]
        for number, slots, _ in self.wanted:
            present[number][slots] = True
        return present

    def _find_live(self, present: Marks, *, is_flowing: bool) -> list[list[Group]]:
        return live_rows(self.entries, present, is_flowing=is_flowing)

    def use_pages(self, *, is_last: bool) -> None:
        """Make sure that the rows from which gradients flow can go backward."""
        for entry, groups in zip(self.entries, self.flowing, strict=True):
            if isinstance(entry, Page) and groups:
                entry.use(np.concatenate([rows for _, rows in groups]), is_last=is_last)
                entry.release()

    def carry_out(self, end: int | None = None) -> None:
        """Go through the entries, up to the one with this number."""
        for entry, live, flowing in zip(
            self.entries[:end], self.live[:end], self.flowing[:end], strict=True
        ):
            self._step(entry, live, flowing)

    def _step(self, entry: Entry, live: list[Group], flowing: list[Group]) -> None:
        """Carry out one entry of the tape."""
        if isinstance(entry, Page):
            for pattern, rows in with_rest(live, flowing):
                self._launch(entry, pattern, rows)
        elif isinstance(entry, Copy):
            self._copy(entry)
        elif isinstance(entry, Pad):
            self._pad(entry)
        elif isinstance(entry, Unpad):
            self._unpad(entry)
        else:
            device = self.kinds[entry.target.arena].device
            values = torch.from_numpy(entry.values).to(device)
            self.pieces.put(entry.target.arena, slots_of(entry.target), values)

    def _copy(self, entry: Copy) -> None:
        sources, targets = slots_of(entry.source), slots_of(entry.target)
        if entry.source.arena == entry.target.arena:
            self.pieces.copy(entry.target.arena, sources, targets)
            return
        made = self.pieces.piece[entry.source.arena][sources] >= 0
        chosen = made.reshape(len(targets), -1).all(axis=1)
        if chosen.any():
            picked = sources.reshape(len(targets), -1)[chosen].reshape(-1)
            shape = self.kinds[entry.target.arena].shape
            values = self.pieces.take(entry.source.arena, picked)
            whole = values.reshape(int(chosen.sum()), *shape)
            self.pieces.put(entry.target.arena, targets[chosen], whole)

    def _pad(self, entry: Pad) -> None:
        arena = entry.source.arena
        missing = self.pieces.piece[arena][slots_of(entry.source)] < 0
        rows = np.setdiff1d(np.arange(len(entry.lengths)), rows_with_any(missing, entry.lengths))
        slots = element_slots(entry.source, entry.lengths, rows)
        if len(slots):
            values = self.pieces.take(arena, slots)
            padder = Padder(entry.lengths[rows], entry.length, values.device)
            targets = slots_of(entry.target)[rows]
            self.pieces.put(entry.target.arena, targets, padder.pad(values))

    def _unpad(self, entry: Unpad) -> None:
        arena, sources = entry.source.arena, slots_of(entry.source)
        rows = np.flatnonzero(self.pieces.piece[arena][sources] >= 0)
        slots = element_slots(entry.target, entry.lengths, rows)
        if len(slots):
            values = self.pieces.take(arena, sources[rows])
            padder = Padder(entry.lengths[rows], entry.length, values.device)
            self.pieces.put(entry.target.arena, slots, padder.unpad(values))

    def arguments(self, page: Page, rows: Integers) -> list[torch.Tensor | int]:
        """The operands of some rows of a launch."""
        found: list[torch.Tensor | int] = []
        for position, operand in enumerate(page.launch.operands):
            if isinstance(operand, Shared):
                found.append(self.uniform(operand.wire))
            elif isinstance(operand, Sized):
                found.append(operand.size)
            elif isinstance(operand, Hosted):
                device = page.block.inputs[position].device
                found.append(torch.from_numpy(operand.values[rows]).to(device))
            else:
                found.append(self._take(page, position, operand, rows))
        return found

    def _launch(self, page: Page, pattern: Pattern, rows: Integers) -> None:
        """Run some rows of a launch; gradients flow through the results of a pattern only: the
        others, whose cotangents would be zeros, are cut off.
        """
        _check_repeatable(page)
        outputs = page.block.run(len(rows), self._connected(page, self.arguments(page, rows)))
        for position, target in enumerate(page.launch.targets):
            values = outputs[position]
            if position not in pattern:
                values = values.detach()
            slots = slots_of(target).reshape(page.rows, -1)[rows].reshape(-1)
            if len(slots):
                shape = self.kinds[target.arena].shape
                self.pieces.put(target.arena, slots, values.reshape(len(slots), *shape))

    def _take(
        self, page: Page, position: int, operand: Span | Picks, rows: Integers
    ) -> torch.Tensor:
        slots = slots_of(operand).reshape(page.rows, -1)[rows]
        if not slots.size:
            spec = page.block.inputs[position]
            shape = [0 if isinstance(size, str) else size for size in spec.shape]
            return torch.empty((len(rows), *shape), dtype=spec.torch_dtype, device=spec.device)
        values = self.pieces.take(operand.arena, slots.reshape(-1))
        kind = page.block.node.inputs[position].type
        if page.block.block.is_flat and kind.is_sequence:  # type: ignore[union-attr]
            return values.unsqueeze(1)
        if operand.length is not None:
            return values.reshape(len(rows), operand.length, *values.shape[1:])
        return values

    def _connected(
        self, page: Page, arguments: list[torch.Tensor | int]
    ) -> list[torch.Tensor | int]:
        """The arguments of a launch, those through which no gradients flow cut off."""
        return [
            argument.detach()
            if isinstance(argument, torch.Tensor) and position not in page.operands
            else argument
            for position, argument in enumerate(arguments)
        ]


def _check_repeatable(page: Page) -> None:
    if isinstance(page.block, OpaqueBlock) and not page.block.is_repeatable:
        raise RepetitionError(
            report(
                "Gradients of gradients need to run a step again that cannot be run twice.",
                where=str(page.block.node.source) if page.block.node.source else None,
                facts=[("step", page.block.name)],
                todo="Call it outside of the mapped code, or do without create_graph=True.",
            )
        )
