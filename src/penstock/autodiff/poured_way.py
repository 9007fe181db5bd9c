"""The way back through a template, as a CUDA graph.

All rows of all stages go back, those left over from cotangents of zero. A half takes cotangents out
of their slots, leaves zeros there, and adds gradients to slots that were zeros at first. That is
right where every launch of the plan has a cotangent for every row: which rows have, presence tells
on the host while the device is at work; what it has done in vain is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.contract import Contraction
from penstock.autodiff.fused_half import uses_of, whole_part
from penstock.autodiff.gradients import GradientArena, add_gradients, as_slots
from penstock.autodiff.joint import Backward, TrainingForm
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.taped_run import TapedRun
from penstock.plan.schedule import Launch, Picks, Shared, Span
from penstock.run.fused.binding import known_form, run_form
from penstock.run.fused.form import FusedForm
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written
from penstock.run.templates.layout import SPARE
from penstock.run.templates.template import Poured, Replayable, Template, Unfit, captured

#: Which slots of an arena have gradients.
Presence: TypeAlias = npt.NDArray[np.bool_]


#: Finds a tensor in a template.
Find: TypeAlias = Callable[[], torch.Tensor]


class _Half(NamedTuple):
    """The backward half of a stage."""

    launch: Launch
    training: TrainingForm
    #: The results that have cotangents.
    results: tuple[int, ...]
    #: The operands in slots that have gradients, and where these are among what the half gives;
    #: None where the half adds them itself.
    slots: Mapping[int, int | None]
    #: The uniform operands that have gradients, by wire, and how these follow.
    uniforms: Sequence[tuple[int, Contraction]]
    #: The uniform values that it reads.
    read: Sequence[int]
    form: FusedForm
    #: What its code takes, in order.
    finds: Sequence[Find]


class PouredWay:
    """The way back through a template."""

    def __init__(self, template: Template, run: TapedRun) -> None:
        self.template, self.own = template, run
        self.arenas: dict[int, GradientArena] = {}
        #: For each stage its half; None for those that carry no gradients.
        self.halves = [self._half(k, launch) for k, launch in enumerate(template.layout.launches)]
        #: The uniform values that halves read.
        self.read = {wire for half in self.halves if half is not None for wire in half.read}
        #: The gradients of uniform values, by wire.
        self.gradients: dict[int, torch.Tensor] = {}
        self.graph: Replayable | None = None

    # ---- stages ----------------------------------------------------------------------------------

    def _half(self, stage: int, launch: Launch) -> _Half | None:
        operands, results = self.own.flows(launch.block)
        if not operands or not results:
            return None
        form = self.own.whole_form(launch.block)
        assert form is not None
        backward = form.backward(tuple(results))
        slots: dict[int, int] = {}
        uniforms: list[tuple[int, Contraction]] = []
        for operand, place in zip(operands, backward.gradients, strict=True):
            source = launch.operands[operand]
            if isinstance(place, Contraction):
                assert isinstance(source, Shared)
                uniforms.append((source.wire, place))
            elif isinstance(place, int):
                if isinstance(source, Shared):  # rows that are left over cannot be told there
                    raise Unfit(f"{form.name} sums a weight gradient itself")
                assert isinstance(source, Picks)
                self._arena(source.arena)
                slots[operand] = place
        uses = uses_of(backward)
        added = {place: operand for operand, place in slots.items() if uses[place] == 1}
        fused, finds = self._bind(launch, form, backward, stage, added)
        given = {operand: None if place in added else place for operand, place in slots.items()}
        read = [launch.operands[k].wire for k in backward.uniforms]  # type: ignore[union-attr]
        return _Half(launch, form, tuple(results), given, uniforms, read, fused, finds)

    def _arena(self, number: int) -> GradientArena:
        if number not in self.arenas:
            kind, end = self.template.kinds[number], self.template.ends[number]
            self.arenas[number] = GradientArena(kind, end + SPARE)
        return self.arenas[number]

    def _bind(
        self,
        launch: Launch,
        form: TrainingForm,
        backward: Backward,
        stage: int,
        added: Mapping[int, int],
    ) -> tuple[FusedForm, list[Find]]:
        parts: list[Part] = []
        finds: list[Find] = []
        for position in backward.saved:
            parts.append(self._saved_part(stage, form, position, launch.rows))
            finds.append(self._find_saved(stage, position))
        for operand in backward.uniforms:
            wire = launch.operands[operand].wire  # type: ignore[union-attr]
            parts.append(whole_part(self.own.uniform(wire)))
            finds.append(self._find_uniform(wire))
        for result in form.results:
            values = self._arena(launch.targets[result].arena).values
            row = tuple(values.shape[1:])
            parts.append(Part(Origin.GATHERED, values.dtype, row, values.device, is_taken=True))
            finds += self._find_slots(launch.targets[result])
        count = 1 + max(uses_of(backward), default=-1)
        results: list[Written | None] = [None] * count
        for place in sorted(added):
            source = launch.operands[added[place]]
            assert isinstance(source, Picks)
            values = self._arena(source.arena).values
            row = tuple(values.shape[1:])
            results[place] = Written(values.dtype, row, values.device, is_added=True)
            finds += self._find_slots(source)
        code = LaunchCode(backward.function, tuple(parts), tuple(results))
        block = self.own.blocks[launch.block]
        return known_form(block, code, "backward"), finds

    def _saved_part(self, stage: int, form: TrainingForm, position: int, rows: int) -> Part:
        values, dimension = self.template.saved[stage][position], form.saved[position].dimension
        if dimension is None:
            return whole_part(values)
        if dimension or values.shape[0] != rows:
            raise Unfit(f"{form.name} saves a value that has not one entry for each row")
        return Part(Origin.GIVEN, values.dtype, tuple(values.shape[1:]), values.device)

    def _find_saved(self, stage: int, position: int) -> Find:
        template = self.template
        return lambda: template.saved[stage][position]

    def _find_uniform(self, wire: int) -> Find:
        own = self.own
        return lambda: own.uniform(wire)

    def _find_slots(self, source: Span | Picks) -> tuple[Find, Find]:
        values, slots = self._arena(source.arena).values, self._slots(source)
        return (lambda: values), (lambda: slots)

    def _slots(self, source: Span | Picks) -> torch.Tensor:
        return self.template.layout.find(source, self.template.device)

    # ---- going back ------------------------------------------------------------------------------

    def _go(self) -> None:
        """Take all stages back, from cotangents in slots."""
        windows: dict[object, _Factors] = {}
        are_real = self.template.layout.are_taken()
        for half in reversed(self.halves):
            if half is not None:
                self._take_back(half, windows, are_real)
        self.gradients = {}
        for factors in windows.values():
            known = self.gradients.get(factors.wire)
            self.gradients[factors.wire] = add_gradients(known, factors.contracted())

    def _take_back(
        self, half: _Half, windows: dict[object, _Factors], are_real: torch.Tensor
    ) -> None:
        tensors = [find() for find in half.finds]
        given = iter(run_form(half.form, half.launch.rows, tensors))
        places = enumerate(half.form.code.results)
        results = {place: next(given) for place, written in places if written is None}
        is_real = self.template.layout.piece(half.launch.targets[0], are_real)
        for wire, how in half.uniforms:
            key = (half.training, wire, how)
            if key not in windows:
                windows[key] = _Factors(wire, how)
            windows[key].add([results[place] for place in how.places], is_real)
        for operand, place in half.slots.items():
            if place is not None:
                source = half.launch.operands[operand]
                assert isinstance(source, Picks)
                self.arenas[source.arena].add(self._slots(source), results[place])

    def go(self, run: TapedRun, plan: Poured, put: Callable[[Reversal], None]) -> Reversal | None:
        """The gradients after a pass from cotangents that `put` puts into slots; None where some
        rows have none.
        """
        if self.graph is None:
            self._seeded(run, put)
            self.graph = captured(self._go, self.template.device)
        reversal = self._seeded(run, put)
        if reversal.arenas.keys() != self.arenas.keys():
            return None
        self.graph.replay()
        wires = self._reach(plan)
        if wires is None:
            return None
        reversal.uniform_gradients = _copies_of({k: self.gradients[k] for k in wires})
        return reversal

    def _seeded(self, run: TapedRun, put: Callable[[Reversal], None]) -> Reversal:
        """A pass that has not begun."""
        if self.arenas:
            torch._foreach_zero_([arena.values for arena in self.arenas.values()])
        for arena in self.arenas.values():
            arena.present[:] = False
        reversal = Reversal(run, keep=True, checks_nan=False)
        reversal.arenas = dict(self.arenas)
        put(reversal)
        return reversal

    # ---- presence --------------------------------------------------------------------------------

    def _reach(self, plan: Poured) -> set[int] | None:
        """The uniform values that gradients come to, and with it the slots; None where some row of
        a launch has no cotangents, or too few to go with the others.
        """
        wires: set[int] = set()
        present = {number: arena.present for number, arena in self.arenas.items()}
        for stage, launch in zip(reversed(plan.stages), reversed(plan.launches), strict=True):
            half = self.halves[stage]
            if half is not None and not _is_held(half, launch, present):
                return None
            for target in launch.targets:
                if target.arena in present:
                    present[target.arena][as_slots(target)] = False
            if half is not None:
                wires.update(wire for wire, _ in half.uniforms)
                for operand in half.slots:
                    source = launch.operands[operand]
                    present[source.arena][as_slots(source)] = True  # type: ignore[union-attr,arg-type]
        return wires


def _copies_of(gradients: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Gradients in memory of their own: the next replay writes theirs anew."""
    copies = {wire: torch.empty_like(values) for wire, values in gradients.items()}
    if copies:
        torch._foreach_copy_(list(copies.values()), list(gradients.values()))
    return copies


def _is_held(half: _Half, launch: Launch, present: Mapping[int, Presence]) -> bool:
    """Whether all rows may go back together."""
    whole = []
    for result in half.results:
        target = launch.targets[result]
        if present[target.arena][as_slots(target)].all():
            whole.append(result)
    held = tuple(whole)
    return held == half.results or (bool(held) and half.training.takes_zeros(half.results, held))


class _Factors:
    """Factors of one weight gradient, of all stages."""

    def __init__(self, wire: int, how: Contraction) -> None:
        self.wire, self.how = wire, how
        self.parts: list[tuple[torch.Tensor, ...]] = []
        self.are_real: list[torch.Tensor] = []

    def add(self, factors: Sequence[torch.Tensor], is_real: torch.Tensor) -> None:
        """Take those of one stage."""
        for term in self.how.terms(factors):
            times = term[0].shape[0] // is_real.shape[0]
            self.parts.append(term)
            self.are_real.append(is_real if times == 1 else is_real.repeat_interleave(times))

    def contracted(self) -> torch.Tensor:
        """The gradient: rows that are nobody's count nothing, whatever they hold."""
        is_real = torch.cat(self.are_real)
        factors = [torch.cat(column) for column in zip(*self.parts, strict=True)]
        return self.how.contract([_without(values, is_real) for values in factors])


def _without(values: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
    if not (values.is_floating_point() or values.is_complex()):
        return values
    return values.masked_fill(~is_real.view(-1, *[1] * (values.dim() - 1)), 0)
