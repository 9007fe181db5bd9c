"""The reversed schedule: takes cotangents of outputs back through the tape to inputs and uniform values.

For each launch, last first: the rows that have cotangents, grouped by which results have them; the backward half for
each group; gradients added to the slots of the operands. Copies turn around; control needs no rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from penstock.autodiff.gradients import GradientArena, slots_of
from penstock.autodiff.tape import Page, Tape
from penstock.plan.schedule import Copy, Integers, Kind, Picks, Shared, Span, Store


class Reversal:
    """One backward pass over a tape."""

    def __init__(
        self,
        tape: Tape,
        kinds: list[Kind],
        capacities: list[int],
        uniform: Callable[[int], torch.Tensor],
        may_repeat: bool,
    ) -> None:
        self.tape = tape
        self.kinds = kinds
        self.capacities = capacities
        self.uniform = uniform
        #: Whether rows may be gone through again (the graph was retained).
        self.may_repeat = may_repeat
        self.arenas: dict[int, GradientArena] = {}
        self.uniform_gradients: dict[int, torch.Tensor] = {}

    def arena(self, number: int) -> GradientArena:
        """The gradients of an arena's values."""
        if number not in self.arenas:
            self.arenas[number] = GradientArena(self.kinds[number], self.capacities[number])
        return self.arenas[number]

    def run(self) -> None:
        """Go through the tape from its end."""
        for entry in reversed(self.tape.entries):
            if isinstance(entry, Copy):
                self._reverse_copy(entry)
            elif isinstance(entry, Store):
                self._forget((entry.target,))
            elif entry.form is not None:
                self._reverse_launch(entry)
            else:
                self._forget(entry.launch.targets)

    def _reverse_copy(self, copy: Copy) -> None:
        arena = self.arenas.get(copy.target.arena)
        if arena is None:
            return
        targets, sources = slots_of(copy.target), slots_of(copy.source)
        held = arena.present[targets]
        if held.any():
            gradients = arena.gather(targets[held])
            arena.clear(targets)
            arena.accumulate(sources[held], gradients.clone())

    def _forget(self, targets: Sequence[Span | Picks]) -> None:
        for target in targets:
            if target.arena in self.arenas:
                self.arenas[target.arena].clear(slots_of(target))

    def _reverse_launch(self, page: Page) -> None:
        form = page.form
        assert form is not None
        rows = page.launch.rows
        held = {k: self._rows_held(page.launch.targets[k], rows) for k in form.results}
        if any(mask is not None for mask in held.values()):
            for pattern, index in _patterns(held, rows):
                self._check_first(page, index)
                self._run_backward(page, pattern, index)
        self._forget(page.launch.targets)

    def _rows_held(self, target: Span | Picks, rows: int) -> np.ndarray | None:  # type: ignore[type-arg]
        """Which rows of a result have a cotangent; None if none has."""
        arena = self.arenas.get(target.arena)
        if arena is None:
            return None
        held = arena.present[slots_of(target)]
        if len(held) != rows:
            held = held.reshape(rows, -1).any(axis=1)
        return held if held.any() else None

    def _check_first(self, page: Page, index: Integers | None) -> None:
        if page.consumed is None:
            page.consumed = np.zeros(page.launch.rows, np.bool_)
        chosen = page.consumed if index is None else page.consumed[index]
        if chosen.any() and not self.may_repeat:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved "
                "tensors after they have already been freed). Specify retain_graph=True if you "
                "need to backward through the graph a second time."
            )
        page.consumed[slice(None) if index is None else index] = True

    def _run_backward(
        self, page: Page, pattern: tuple[int, ...], index: Integers | None
    ) -> None:
        launch, form = page.launch, page.form
        assert form is not None
        backward = form.backward(pattern)
        rows = launch.rows if index is None else len(index)
        saved = [page.saved[k] for k in backward.saved]
        if index is not None:
            where = torch.from_numpy(index)
            saved = [
                form.saved[k].select(values, launch.rows, where.to(values.device))
                for k, values in zip(backward.saved, saved, strict=True)
            ]
        uniforms = [self.uniform(launch.operands[k].wire) for k in backward.uniforms]  # type: ignore[union-attr]
        cotangents = [self._cotangent(page, k, index, rows) for k in pattern]
        results = backward.function(rows, *saved, *uniforms, *cotangents, *page.sizes)
        for operand, place in zip(form.operands, backward.gradients, strict=True):
            if place is not None:
                self._add(page, operand, results[place], index)

    def _cotangent(
        self, page: Page, result: int, index: Integers | None, rows: int
    ) -> torch.Tensor:
        target = page.launch.targets[result]
        arena = self.arena(target.arena)
        slots = _row_slots(target, page.launch.rows, index)
        values = arena.gather(slots)
        if page.block.block.is_flat:
            return values.unsqueeze(1)
        if target.length is not None:
            return values.view(rows, target.length, *arena.kind.shape)
        return values

    def _add(
        self, page: Page, operand: int, gradients: torch.Tensor, index: Integers | None
    ) -> None:
        source = page.launch.operands[operand]
        if isinstance(source, Shared):
            known = self.uniform_gradients.get(source.wire)
            self.uniform_gradients[source.wire] = gradients if known is None else known + gradients
            return
        assert isinstance(source, Span | Picks)
        arena = self.arena(source.arena)
        slots = _row_slots(source, page.launch.rows, index)
        arena.accumulate(slots, gradients.reshape(len(slots), *arena.kind.shape))


def _row_slots(source: Span | Picks, rows: int, index: Integers | None) -> Integers:
    """The slots of some rows of an operand or target."""
    slots = slots_of(source)
    if index is None:
        return slots
    if len(slots) == rows:
        return slots[index]
    picked: Integers = slots.reshape(rows, -1)[index].reshape(-1)
    return picked


def _patterns(
    held: dict[int, np.ndarray | None],  # type: ignore[type-arg]
    rows: int,
) -> Iterator[tuple[tuple[int, ...], Integers | None]]:
    """The rows with each set of results that have cotangents; None stands for all rows."""
    masks = {k: mask for k, mask in held.items() if mask is not None}
    if all(mask.all() for mask in masks.values()):
        yield tuple(masks), None
        return
    code = np.zeros(rows, np.int64)
    for bit, mask in enumerate(masks.values()):
        code |= mask.astype(np.int64) << bit
    for number in np.unique(code):
        if number:
            pattern = tuple(k for bit, k in enumerate(masks) if number >> bit & 1)
            yield pattern, np.flatnonzero(code == number)
