"""The reversed schedule: takes cotangents of outputs back through the tape to inputs and uniform
values.

For each launch, last first: the rows that have cotangents, grouped by which results have them; the
backward half for each group; gradients added to the slots of the operands. Copies turn around;
control needs no rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.contract import Contraction, Window
from penstock.autodiff.gradients import GradientArena, add_gradients, slots_of
from penstock.autodiff.joint import Backward
from penstock.autodiff.tape import Page, TapedRun
from penstock.plan.schedule import Copy, Integers, Picks, Shared, Span, Store
from penstock.run.nans import first_bad_row
from penstock.run.recording import CallRecorder


class NanFound(Exception):
    """The backward half of a launch has made a NaN for one row, out of these cotangents."""

    def __init__(
        self, page: Page, row: int, pattern: tuple[int, ...], cotangents: list[torch.Tensor]
    ) -> None:
        super().__init__(page.block.name)
        self.page, self.row = page, row
        self.cotangents = dict(zip(pattern, cotangents, strict=True))


class Reversal:
    """One backward pass over a tape."""

    def __init__(
        self, run: TapedRun, keep: bool, recorder: CallRecorder | None, checks_nan: bool
    ) -> None:
        self.taped = run
        #: Whether rows may be gone through again (the graph is retained).
        self.keep = keep
        self.recorder = recorder
        #: Whether to stop at the first NaN.
        self.checks_nan = checks_nan
        self.kinds = [space.kind for space in run.machine.spaces]
        self.arenas: dict[int, GradientArena] = {}
        self.uniform_gradients: dict[int, torch.Tensor] = {}
        self.windows: dict[object, tuple[int, Window]] = {}

    def arena(self, number: int) -> GradientArena:
        """The gradients of an arena's values."""
        if number not in self.arenas:
            space = self.taped.machine.spaces[number]
            self.arenas[number] = GradientArena(space.kind, space.end)
        return self.arenas[number]

    def run(self) -> None:
        """Go through the tape from its end."""
        for entry in reversed(self.taped.tape.entries):
            if isinstance(entry, Copy):
                self._reverse_copy(entry)
            elif isinstance(entry, Store):
                self._forget((entry.target,))
            elif entry.form is not None:
                self._reverse_launch(entry)
            else:
                self._forget(entry.launch.targets)
        for wire, window in self.windows.values():
            gradient = window.flush()
            if gradient is not None:
                self._add_uniform(wire, gradient)

    def _reverse_copy(self, copy: Copy) -> None:
        arena = self.arenas.get(copy.target.arena)
        if arena is None:
            return
        targets, sources = slots_of(copy.target), slots_of(copy.source)
        held = arena.present[targets]
        if held.any():
            gradients = arena.gather(targets[held]).clone()
            arena.clear(targets)
            below = self.arena(copy.source.arena)
            chosen = sources.reshape(len(targets), -1)[held].reshape(-1)
            below.accumulate(chosen, gradients.reshape(len(chosen), *below.kind.shape))

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
                backward = form.backward(pattern)
                if backward.saved or backward.uniforms:
                    page.use(index, is_last=not self.keep)
                with self._recorded(page, index):
                    self._run_backward(page, backward, pattern, index)
            page.release()
        self._forget(page.launch.targets)

    def _rows_held(self, target: Span | Picks, rows: int) -> npt.NDArray[np.bool_] | None:
        """Which rows of a result have a cotangent; None if none has."""
        arena = self.arenas.get(target.arena)
        if arena is None:
            return None
        held: npt.NDArray[np.bool_] = arena.present[slots_of(target)]
        held = held.reshape(rows, -1).any(axis=1, keepdims=True).reshape(-1) if rows else held
        return held if held.any() else None

    def _recorded(self, page: Page, index: Integers | None) -> AbstractContextManager[None]:
        if self.recorder is None:
            return nullcontext()
        rows = page.rows if index is None else len(index)
        return self.recorder.backward(self.taped, page.launch, rows)

    def _run_backward(
        self, page: Page, backward: Backward, pattern: tuple[int, ...], index: Integers | None
    ) -> None:
        launch, form = page.launch, page.form
        assert form is not None
        rows = launch.rows if index is None else len(index)
        saved = [page.read_saved(k) for k in backward.saved]
        if index is not None:
            where = torch.from_numpy(index)
            saved = [
                form.saved[k].select(values, launch.rows, where.to(values.device))
                for k, values in zip(backward.saved, saved, strict=True)
            ]
        uniforms = [self.taped.read_uniform(launch.operands[k].wire) for k in backward.uniforms]  # type: ignore[union-attr]
        cotangents = [self._cotangent(page, k, index, rows) for k in pattern]
        results = backward.function(rows, *saved, *uniforms, *cotangents, *page.sizes)
        if self.checks_nan:
            row = first_bad_row(rows, cotangents, _with_rows(rows, results))
            if row is not None:
                raise NanFound(
                    page,
                    row if index is None else int(index[row]),
                    pattern,
                    [c[row] for c in cotangents],
                )
        for operand, place in zip(form.operands, backward.gradients, strict=True):
            if isinstance(place, Contraction):
                self._collect(page, operand, place, results)
            elif place is not None and results[place] is not None:
                self._add(page, operand, results[place], index)

    def _collect(
        self, page: Page, operand: int, how: Contraction, results: Sequence[torch.Tensor]
    ) -> None:
        """Factors of a weight gradient go to the window of their block and operand."""
        source = page.launch.operands[operand]
        assert isinstance(source, Shared)
        key = (page.launch.block, operand, how.kind, how.shape)
        window = self.windows.setdefault(key, (source.wire, Window(how)))[1]
        gradient = window.add(tuple(results[place] for place in how.places))
        if gradient is not None:
            self._add_uniform(source.wire, gradient)

    def _add_uniform(self, wire: int, gradient: torch.Tensor) -> None:
        known = self.uniform_gradients.get(wire)
        self.uniform_gradients[wire] = add_gradients(known, gradient)

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
            self._add_uniform(source.wire, gradients.clone())
            return
        assert isinstance(source, Span | Picks)
        arena = self.arena(source.arena)
        slots = _row_slots(source, page.launch.rows, index)
        arena.accumulate(slots, gradients.reshape(len(slots), *arena.kind.shape))


def _with_rows(rows: int, results: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """The results that have a row for each row of the launch."""
    made = [values for values in results if values is not None]
    return [values for values in made if values.dim() and values.shape[0] == rows]


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
    held: dict[int, npt.NDArray[np.bool_] | None],
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
