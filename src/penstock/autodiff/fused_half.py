"""The backward half of a launch as compiled code: cotangents are gathered, gradients written.

Gradients of slots that occur once are written by the code itself, or added; others, and factors of
weight gradients, are given back. Saved values are gathered too, since a half may be that of some
rows only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from penstock.autodiff.additions import Addition, SlotAddition
from penstock.autodiff.contract import Contraction
from penstock.autodiff.joint import Backward, TrainingForm
from penstock.plan.schedule import Operand, Picks, Span
from penstock.run.batched.emit import BatchFunction
from penstock.run.fused.binding import are_apart, known_form, run_compiled
from penstock.run.fused.form import FusedForm
from penstock.run.fused.indices import FindIndex
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written

if TYPE_CHECKING:
    from penstock.autodiff.page import Page
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.way_back import Half


class HalfForm(NamedTuple):
    """The code of backward halves that give and write the same, and what it takes in which order:
    saved values, uniform values, cotangents, and where gradients are written.
    """

    form: FusedForm
    #: Positions of saved values, and how many entries of each belong to a row; 0: it has no rows.
    saved: tuple[tuple[int, int], ...]
    uniforms: tuple[int, ...]
    #: The operands whose gradients are written.
    written: frozenset[int]
    #: Places of the gradients and factors that are given back.
    given: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some results of a function, in another order, perhaps several times."""

    function: BatchFunction
    places: tuple[int, ...]

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """What the function gives, chosen."""
        results = self.function(*arguments)
        return tuple(results[place] for place in self.places)


class FusedHalf:
    """A backward half of a plan that may be run compiled."""

    __slots__ = ("additions", "arenas", "form", "is_found", "saved", "size", "tensors", "wires")

    def __init__(self, reversal: Reversal, page: Page, half: Half, form: HalfForm) -> None:
        assert half.additions is not None
        self.form = form
        self.size = page.rows if half.index is None else len(half.index)
        #: What the code takes, in order: slots, which are the same in every pass, and None for what
        #: a pass must say.
        self.tensors: list[Any] = []
        #: Whether slots are on their device, so that all are tensors now.
        self.is_found = False
        #: What a pass must say: at which place which saved value, uniform value and arena.
        self.saved: list[tuple[int, int, int]] = []
        self.wires: list[tuple[int, int]] = []
        self.arenas: list[tuple[int, int]] = []
        #: What is left to do with results that are not written.
        self.additions: list[Addition] = []
        self._take(reversal, page, half)

    def _take(self, reversal: Reversal, page: Page, half: Half) -> None:
        form, launch, tensors = self.form, page.launch, self.tensors
        device = form.form.code.device
        # On a CPU slots are tensors at once.
        self.is_found = is_found = device.type == "cpu"
        rows: Any = _positions(reversal, page, half, device)
        rows = rows() if is_found else rows
        for position, entries in form.saved:
            self.saved.append((len(tensors), position, entries))
            tensors += (None, rows) if entries else (None,)
        for operand in form.uniforms:
            self.wires.append((len(tensors), launch.operands[operand].wire))  # type: ignore[union-attr]
            tensors.append(None)
        for result in half.pattern:
            target = launch.targets[result]
            find: Any = reversal.finding(page, target, half.index)
            self.arenas.append((len(tensors), target.arena))
            tensors += (None, find() if is_found else find)
        written = form.written
        for addition in half.additions:  # type: ignore[union-attr]
            if type(addition) is SlotAddition and addition.operand in written:
                find = addition.find
                self.arenas.append((len(tensors), addition.arena))
                tensors += (None, find() if is_found else find)
                if addition.held is not None:
                    tensors.append(addition.held)
            else:
                self.additions.append(addition)

    def run(self, reversal: Reversal, page: Page) -> bool:
        """Do it; False where it must be done the plain way."""
        form = self.form.form
        compiled = form.ready(self.size)
        if compiled is None:
            return False
        given = run_compiled(compiled, self._filled(reversal, page), form.name)
        if given is None:
            return False
        results = dict(zip(self.form.given, given, strict=True))
        for addition in self.additions:
            addition.run(reversal, results, is_own=form.gives_own)
        return True

    def _filled(self, reversal: Reversal, page: Page) -> list[torch.Tensor]:
        if not self.is_found:
            self.tensors = [find() if callable(find) else find for find in self.tensors]
            self.is_found = True
        tensors: list[torch.Tensor] = self.tensors.copy()
        for place, position, entries in self.saved:
            values = page.read_saved(position)
            if entries > 1:
                values = values.view(page.rows, entries, *values.shape[1:])
            tensors[place] = values
        for place, wire in self.wires:
            tensors[place] = reversal.taped.read_uniform(wire)
        for place, number in self.arenas:
            tensors[place] = reversal.arena(number).values
        return tensors


def bind_half(reversal: Reversal, page: Page, half: Half) -> FusedHalf | None:
    """The half of some rows of a launch, if it can be run compiled."""
    form = page.form
    if not isinstance(form, TrainingForm) or not (page.is_apart or are_apart(page.launch)):
        return None
    assert half.additions is not None
    operands, targets, arena = page.launch.operands, page.launch.targets, reversal.arena
    written = tuple(
        [
            (addition.operand, addition.place, addition.is_first)
            for addition in half.additions
            if type(addition) is SlotAddition
            and (addition.is_first or addition.held is not None)
            and operands[addition.operand].length is None  # type: ignore[union-attr]
        ]
    )
    sources: list[Any] = [targets[k] for k in half.pattern]
    sources += [operands[k] for k, *_ in written]
    # What halves with the same code have in common; nothing for what has no code.
    kinds = [arena(item.arena).likeness if item.length is None else None for item in sources]
    key = (half.pattern, written, *kinds)
    if key not in form.fused_halves:
        form.fused_halves[key] = _half_form(reversal, page, half, written)
    found: HalfForm | None = form.fused_halves[key]
    return None if found is None else FusedHalf(reversal, page, half, found)


def _half_form(
    reversal: Reversal, page: Page, half: Half, written: Sequence[tuple[int, int, bool]]
) -> HalfForm | None:
    """The code of all halves like this one, if it can be compiled; `written` are operands with the
    places of their gradients, and whether these are the first.
    """
    form, launch = page.form, page.launch
    assert isinstance(form, TrainingForm)
    targets = [launch.targets[result] for result in half.pattern]
    if page.block.plain_function() is None or any(t.length is not None for t in targets):
        return None
    backward = form.backward(half.pattern)
    saved = [(k, _entries(page, k)) for k in backward.saved]
    if any(entries < 0 for _, entries in saved):
        return None
    wires = [launch.operands[k].wire for k in backward.uniforms]  # type: ignore[union-attr]
    parts = [
        *(_saved_part(page.read_saved(k), entries) for k, entries in saved),
        *(whole_part(reversal.taped.read_uniform(wire)) for wire in wires),
        *(_rows_part(reversal.arena(target.arena).values) for target in targets),
    ]
    if len({part.device for part in parts}) != 1:
        return None
    uses = uses_of(backward)
    uses.subtract(place for _, place, _ in written)
    given = tuple(sorted(place for place, count in uses.items() if count))
    function = Chosen(backward.function, (*given, *(place for _, place, _ in written)))
    puts = [_written(reversal, launch.operands[k], is_first) for k, _, is_first in written]
    code = LaunchCode(function, tuple(parts), (*[None] * len(given), *puts))
    known = known_form(page.block, code, "backward")
    operands = frozenset(operand for operand, *_ in written)
    return HalfForm(known, tuple(saved), backward.uniforms, operands, given)


def _entries(page: Page, position: int) -> int:
    """How many entries of a saved value belong to each row, in front; 0: it has no rows; -1: they
    are elsewhere.
    """
    assert isinstance(page.form, TrainingForm)
    saved, values = page.form.saved[position], page.saved[position]
    if saved.dimension is None:
        return 0
    is_whole = saved.dimension == 0 and values.is_contiguous() and not values.shape[0] % page.rows
    return values.shape[0] // page.rows if is_whole else -1


def _positions(reversal: Reversal, page: Page, half: Half, device: torch.device) -> FindIndex:
    if half.index is not None:
        return reversal.indices.wait(half.index, device)
    return (page.indices or reversal.indices).of(Span(0, 0, page.rows), device)


def _saved_part(values: torch.Tensor, entries: int) -> Part:
    if entries <= 1:
        return _rows_part(values) if entries else whole_part(values)
    shape = (entries, *values.shape[1:])
    return Part(Origin.GATHERED, values.dtype, shape, values.device, is_joined=True)


def _rows_part(values: torch.Tensor) -> Part:
    return Part(Origin.GATHERED, values.dtype, tuple(values.shape[1:]), values.device)


def whole_part(values: torch.Tensor) -> Part:
    """A tensor that is the same for all rows."""
    return Part(Origin.UNIFORM, values.dtype, tuple(values.shape), values.device)


def _written(reversal: Reversal, source: Operand, is_first: bool) -> Written:
    assert isinstance(source, Span | Picks)
    arena = reversal.arena(source.arena)
    return Written(arena.values.dtype, arena.kind.shape, arena.device, is_merged=not is_first)


def uses_of(backward: Backward) -> Counter[int]:
    """How often each result is used."""
    return Counter(place for places in map(_places, backward.gradients) for place in places)


def _places(place: int | Contraction | None) -> tuple[int, ...]:
    if place is None:
        return ()
    return place.places if isinstance(place, Contraction) else (place,)
