"""The reversed schedule: takes cotangents of outputs back through the tape to inputs and uniform
values.

For each launch, last first: the rows that have cotangents, grouped by which results have them; the
backward half for each group; gradients added to the slots of the operands. Copies turn around;
control needs no rules. What is done follows from the plan and from which outputs have cotangents:
the way back that one pass has found serves later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from penstock.autodiff.additions import Outline, find_additions, find_outline, row_slots
from penstock.autodiff.contract import Contraction
from penstock.autodiff.distinct_half import run_distinct_half
from penstock.autodiff.fused_half import bind_half
from penstock.autodiff.gradients import GradientArena, as_array, finder
from penstock.autodiff.gradients_so_far import GradientsSoFar
from penstock.autodiff.joint import Pattern, TrainingForm
from penstock.autodiff.nans import check_half
from penstock.autodiff.padding import reverse_padding
from penstock.autodiff.page import HalfResults, Page
from penstock.autodiff.patterns import Mask, patterns
from penstock.autodiff.tape import Entry, Taping
from penstock.autodiff.way_back import CopyBack, Fetch, Fill, Half, Move, WayBack
from penstock.plan.schedule import Copy, Integers, Pad, Picks, Span, Store, Unpad, slots_of
from penstock.run.collector import collector_waits
from penstock.run.fused.indices import FindIndex, Indices
from penstock.run.fused.setting import Fusion
from penstock.run.memory.exhaustion import note_exhausted
from penstock.run.memory.room import Made, with_room


class Reversal(GradientsSoFar):
    """One backward pass over a tape."""

    #: Whether compiled halves of a way that was gone before may be called in a row.
    goes_straight = True

    def __init__(self, run: Taping, keep: bool, checks_nan: bool) -> None:
        super().__init__(run.extents(), run.unasked())
        self.leading = run.leading_slots()
        self.taped = run
        #: Whether rows may be gone through again (the graph is retained).
        self.keep = keep
        #: Whether to stop at the first NaN.
        self.checks_nan = checks_nan
        #: Whether halves that are bound to compiled code run so.
        self.may_be_fused = not checks_nan and Fusion.mode != "never"
        #: Slots of some rows of launches on their devices.
        self.indices = Indices()
        #: Whether the way back is decided by which outputs have cotangents: not where torch's own
        #: autograd finds it for some launch, or where it depends on values.
        self.is_repeatable = True
        #: What halves have in common, by block and what it gives; kept by `additions`.
        self.outlines: dict[object, tuple[object, Outline]] = {}
        #: Uniform values that were read, which nobody has changed since the forward run.
        self._uniforms: dict[int, torch.Tensor] = {}

    def run(self, entries: Sequence[Entry]) -> WayBack | None:
        """Go through a tape from its end; the way, if which outputs have cotangents decides it.

        Where it is known beforehand which gradients each launch gives, the whole way is found
        first, so that all slots travel to their device together.
        """
        steps = []
        is_known = all(map(gives_known, entries))
        if is_known:
            with collector_waits():
                steps = [self._reverse(entry) for entry in reversed(entries)]
        for entry in () if is_known else reversed(entries):
            steps.append(self.reverse_one(entry))
        present = {number: arena.present.copy() for number, arena in self.arenas.items()}
        way = WayBack(tuple(steps), present)
        if is_known:
            self.go(entries, way)
        else:
            self.flush()
        return way if self.is_repeatable else None

    def reverse_one(self, entry: Entry) -> tuple[Half, ...] | Move:
        """Find the way back of one entry, and go it."""
        step = self._reverse(entry)
        self.run_step(entry, step)
        return step

    def run_again(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Go through a tape on the way that an earlier pass has found for one like it."""
        straight = way.straight.find(entries, way.steps) if self._may_go_straight else None
        if straight is not None and straight.go(self, entries):
            self.flush()
        else:
            self.go(entries, way)
        for number, present in way.present.items():
            self.arena(number).present = present

    @property
    def _may_go_straight(self) -> bool:
        is_plain = self.goes_straight and self.taped.recorder is None and Fusion.mode != "never"
        return is_plain and not self.keep and not self.checks_nan

    def go(self, entries: Sequence[Entry], way: WayBack) -> None:
        """Take all steps of a way."""
        for entry, step in zip(reversed(entries), way.steps, strict=True):
            self.run_step(entry, step)
        self.flush()

    def run_step(self, entry: Entry, step: tuple[Half, ...] | Move) -> None:
        """Take the step that belongs to an entry."""
        if not isinstance(step, tuple):
            step.run(self)
        elif step:
            assert isinstance(entry, Page)
            try:
                for half in step:
                    self._run_half(entry, half)
            except Exception as error:
                self.note(entry, error)
                raise
            entry.release()

    def note(self, page: Page, error: Exception) -> None:
        """Say what was at work where memory has run out."""
        note_exhausted(error, self.taped, page.block, page.rows, ".backward")

    def _reverse(self, entry: Entry) -> tuple[Half, ...] | Move:
        if isinstance(entry, Copy):
            return self._reverse_copy(entry)
        if isinstance(entry, Pad | Unpad):
            return reverse_padding(self, entry) or ()
        if isinstance(entry, Store):
            self._forget((entry.target,))
            return ()
        halves = self._reverse_launch(entry) if entry.results else ()
        self._forget(entry.launch.targets)
        return halves

    def _reverse_copy(self, copy: Copy) -> tuple[Half, ...] | CopyBack:
        arena = self.arenas.get(copy.target.arena)
        if arena is None:
            return ()
        targets, sources = slots_of(copy.target), slots_of(copy.source)
        held = arena.present[targets]
        if not held.any():
            return ()
        gather = arena.prepare_gather(targets[held])
        arena.clear(targets)
        below = self.arena(copy.source.arena)
        chosen = sources.reshape(len(targets), -1)[held].reshape(-1)
        shape = (len(chosen), *below.kind.shape)
        add = below.prepare_accumulate(chosen)
        return CopyBack(copy.target.arena, gather, copy.source.arena, shape, add)

    def _reverse_launch(self, page: Page) -> tuple[Half, ...]:
        rows, targets = page.launch.rows, page.launch.targets
        held: dict[int, Mask | None] = {}
        partial = []
        for k in page.results:
            mask, is_whole = self._rows_held(targets[k], rows)
            if mask is not None:
                held[k] = mask
                if not is_whole:
                    partial.append(k)
        if not held:
            return ()
        if not partial:
            return (self._half(page, tuple(held), None, ()),)
        found = patterns(held, rows, page.form)
        return tuple(self._half(page, *chosen, partial) for chosen in found)

    def _half(
        self, page: Page, pattern: Pattern, index: Integers | None, partial: Sequence[int]
    ) -> Half:
        """The backward half of some rows, and what becomes of its results, if that is known; some
        rows lack a cotangent of the `partial` ones.
        """
        zeros: tuple[Fill, ...] = ()
        if partial:
            lacking = (k for k in pattern if k in partial)
            zeros = tuple(fill for k in lacking for fill in self._zeros(page, k, index))
        half = Half(pattern, index, zeros, page.needs_saved(pattern))
        if isinstance(page.form, TrainingForm):
            half.outline = find_outline(self, page, page.form.backward(pattern).gradients)
            half.additions = find_additions(self, page, index, half.outline)
            self._bind(page, half)
        return half

    def _zeros(self, page: Page, result: int, index: Integers | None) -> Iterator[Fill]:
        """Puts zeros into slots of a result that have no cotangent."""
        target = page.launch.targets[result]
        arena = self.arena(target.arena)
        missing = arena.take_more(row_slots(target, page.rows, index))
        if len(missing):
            find = self.indices.wait(missing, arena.device, arena.first)
            number = target.arena
            yield lambda reversal: reversal.arena(number).values.index_fill_(0, find(), 0)

    def _bind(self, page: Page, half: Half) -> None:
        if half.is_bound or page.is_used_up or page.distinct is not None:
            return
        if page.block.is_hot("backward"):
            half.fused, half.is_bound = bind_half(self, page, half), True

    def _run_half(self, page: Page, half: Half) -> None:
        if half.needs_saved:
            page.use(half.index, is_last=not self.keep)
        if self.taped.recorder is None:
            self.run_backward(page, half)
            return
        rows = page.rows if half.index is None else len(half.index)
        work = self.run_backward, page, half
        self.taped.recorder.backward(self.taped, page.launch, rows, *work)

    def run_backward(self, page: Page, half: Half) -> None:
        """Run a half of a page whose saved values are there."""
        for fill in half.zeros:
            fill(self)
        if self.checks_nan:  # row by row
            page.spread()
        if page.distinct is not None:
            run_distinct_half(self, page, half)
            return
        if self._run_fused(page, half):
            return
        cotangents, (results, places) = self.attempt(page, partial(self._compute, page, half))
        if self.checks_nan:
            check_half(page, half, cotangents, results)
        if half.additions is None:
            self.is_repeatable &= page.is_repeatable(half.pattern)
            given = [_given(results, place) for place in places]
            told = [None if k is None else results[k] for k in page.reached(half.pattern)]
            outline = find_outline(self, page, given)
            half.additions = find_additions(self, page, half.index, outline, told)
        for addition in half.additions:
            addition.run(self, results)

    def attempt(self, page: Page, work: Callable[[], Made]) -> Made:
        """Do what changes nothing for a page; it is done again where memory runs out and some is
        given back.
        """
        if page.graph is not None:  # torch lets go of it as it goes backward
            return work()
        return with_room(work, self.taped.relieve)

    def _new_arena(self, number: int) -> GradientArena:
        make = partial(super()._new_arena, number)
        return with_room(make, self._arena_holder(number).relieve)

    def _arena_holder(self, number: int) -> Taping:
        """Whose saved values leave for the gradients of an arena."""
        return self.taped

    def _compute(self, page: Page, half: Half) -> tuple[list[torch.Tensor], HalfResults]:
        """The cotangents of the rows of a half, and what it gives."""
        cotangents = self.cotangents(page, half)
        found = page.go_back(half.pattern, half.index, cotangents, self.read_uniform)
        return cotangents, found

    def cotangents(self, page: Page, half: Half) -> list[torch.Tensor]:
        """The cotangents of the rows of a half."""
        if half.cotangents is None:
            found = (self._cotangent(page, k, half.index) for k in half.pattern)
            half.cotangents = tuple(found)
        return [fetch(self) for fetch in half.cotangents]

    def _run_fused(self, page: Page, half: Half) -> bool:
        """Run a half compiled, if it is worth it by now."""
        if half.fused is None or not self.may_be_fused:
            if not page.block.is_hot("backward", page.rows) or self.checks_nan:
                return False
            if half.additions is None:
                return False
            self._bind(page, half)
        return half.fused is not None and half.fused.run(self, page)

    def _cotangent(self, page: Page, result: int, index: Integers | None) -> Fetch:
        """How to find the cotangents of a result."""
        target = page.launch.targets[result]
        number, arena = target.arena, self.arena(target.arena)
        slots = row_slots(target, page.rows, index)
        gather = arena.prepare_take(slots, finder(self.locate(page, target, index)))
        if page.block.block.is_flat:
            return lambda reversal: gather(reversal.arena(number)).unsqueeze(1)
        if target.length is not None:
            rows = page.rows if index is None else len(index)
            shape = (rows, target.length, *arena.kind.shape)
            return lambda reversal: gather(reversal.arena(number)).view(shape)
        return lambda reversal: gather(reversal.arena(number))

    def locate(
        self, page: Page, source: Span | Picks, index: Integers | None
    ) -> torch.Tensor | FindIndex:
        """The slots of some rows of an operand or a target on their device, or what finds them
        there.
        """
        arena = self.arena(source.arena)
        if index is None:
            return (page.indices or self.indices).find(source, arena.device, arena.first)
        slots = as_array(row_slots(source, page.rows, index))
        return self.list_rows(slots - arena.first if arena.first else slots, arena.device)

    def list_rows(self, rows: Integers, device: torch.device) -> torch.Tensor | FindIndex:
        """Rows or slots on a device, or what finds them there."""
        if device.type == "cpu":
            return torch.from_numpy(rows)
        return self.indices.wait(rows, device)

    def read_uniform(self, number: int) -> torch.Tensor:
        """A uniform value, unless it has been changed since the forward run."""
        found = self._uniforms.get(number)
        if found is None:
            found = self._uniforms[number] = self.taped.read_uniform(number)
        return found


def _given(
    results: Sequence[torch.Tensor | None], place: int | Contraction | None
) -> int | Contraction | None:
    """The place of a gradient, unless there is none."""
    return None if isinstance(place, int) and results[place] is None else place


def gives_known(entry: Entry) -> bool:
    """Whether it is known beforehand which gradients a launch gives."""
    return not isinstance(entry, Page) or not entry.results or isinstance(entry.form, TrainingForm)
