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

from penstock.autodiff.additions import Addition, Collection, SlotAddition
from penstock.autodiff.contract import Contraction
from penstock.autodiff.joint import Backward, TrainingForm
from penstock.plan.schedule import Launch, Operand, Picks, Span
from penstock.run.batched.emit import BatchFunction
from penstock.run.fused.binding import are_apart, known_form, run_compiled
from penstock.run.fused.form import FusedForm
from penstock.run.fused.indices import FindIndex, count
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written

if TYPE_CHECKING:
    from penstock.autodiff.page import Page
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.way_back import Half


#: How compiled code writes a gradient: as the first and only one, or added to what is there.
WRITTEN, MERGED = 1, 2


class HalfForm(NamedTuple):
    """The code of backward halves that give and write the same, and what it takes in which order:
    saved values, uniform values, cotangents, and where gradients are written.
    """

    form: FusedForm
    #: Positions of saved values, and how many entries of each belong to a row; 0: it has no rows.
    saved: tuple[tuple[int, int], ...]
    uniforms: tuple[int, ...]
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


class Layout:
    """What code takes, and from where, as far as all halves with one outline that write the same
    gradients have it in common.
    """

    __slots__ = ("additions", "arenas", "collected", "form", "nothing", "saved", "ways", "wires")

    def __init__(self, form: HalfForm, page: Page, half: Half, ways: Sequence[int]) -> None:
        outline, launch = half.outline, page.launch
        assert outline is not None
        self.form = form
        #: For each operand with gradients in slots how compiled code writes them.
        self.ways = ways
        #: What a pass must say: at which place which saved value, and how many of its entries
        #: belong to a row; which uniform value; the values of which arena.
        self.saved: list[tuple[int, int, int]] = []
        self.wires: list[tuple[int, int]] = []
        self.arenas: list[tuple[int, int]] = []
        #: Stands for the uniform values as long as nobody has said them.
        self.nothing = (None,) * len(form.uniforms)
        place = 0
        for position, entries in form.saved:
            self.saved.append((place, position, entries))
            place += 2 if entries else 1
        for operand in form.uniforms:
            self.wires.append((place, launch.operands[operand].wire))  # type: ignore[union-attr]
            place += 1
        for result in half.pattern:
            self.arenas.append((place, launch.targets[result].arena))
            place += 2
        for (operand, _), way in zip(outline.in_slots, ways, strict=True):
            if way:
                self.arenas.append((place, launch.operands[operand].arena))  # type: ignore[union-attr]
                place += 2 if way == WRITTEN else 3
        #: What is collected, and which of the results that are given.
        self.collected = [
            (item, [form.given.index(k) for k in item.how.places])
            for item in outline.uniform
            if isinstance(item, Collection)
        ]
        #: What else is left to do with what is given, for all halves alike.
        self.additions = tuple(x for x in outline.uniform if not isinstance(x, Collection))


class FusedHalf:
    """A backward half of a plan that may be run compiled."""

    __slots__ = ("additions", "is_found", "layout", "size", "tensors")

    def __init__(self, reversal: Reversal, page: Page, half: Half, layout: Layout) -> None:
        assert half.additions is not None
        assert half.outline is not None
        form, targets = layout.form, page.launch.targets
        self.layout = layout
        self.size = page.rows if half.index is None else len(half.index)
        #: Whether slots are on their device, so that all are tensors now.
        self.is_found = form.form.code.device.type == "cpu"
        #: What the code takes, in order: slots, which are the same in every pass, and None for what
        #: a pass must say.
        self.tensors: list[Any] = []
        #: What is left to do with results that are neither written nor collected.
        self.additions: Sequence[Addition] = layout.additions
        tensors, rows = self.tensors, _positions(reversal, page, half, form.form.code.device)
        for _, entries in form.saved:
            tensors += (None, rows) if entries else (None,)
        tensors += layout.nothing
        for result in half.pattern:
            tensors += (None, reversal.locate(page, targets[result], half.index))
        in_slots = half.additions[len(half.outline.uniform) :]
        for addition, way in zip(in_slots, layout.ways, strict=True):
            assert isinstance(addition, SlotAddition)
            if way == WRITTEN:
                tensors += (None, addition.where)
            elif way == MERGED:
                tensors += (None, addition.where, addition.held)
            else:
                self.additions = (*self.additions, addition)

    def run(self, reversal: Reversal, page: Page) -> bool:
        """Do it; False where it must be done the plain way. Code that fails and may have added to
        gradients raises: the plain way would add to them again.
        """
        form = self.layout.form.form
        compiled = form.ready(self.size)
        if compiled is None:
            return False
        given = run_compiled(compiled, self._filled(reversal, page), form)
        if given is None:
            return False
        for item, places in self.layout.collected:
            factors = [given[place] for place in places]
            reversal.collect(item.key, item.wire, item.how, factors, is_own=form.gives_own)
        if self.additions:
            results = dict(zip(self.layout.form.given, given, strict=True))
            for addition in self.additions:
                addition.run(reversal, results, is_own=form.gives_own)
        return True

    def _filled(self, reversal: Reversal, page: Page) -> list[torch.Tensor]:
        if not self.is_found:
            self.tensors = [find() if callable(find) else find for find in self.tensors]
            self.is_found = True
        tensors: list[torch.Tensor] = self.tensors.copy()
        layout = self.layout
        for place, position, entries in layout.saved:
            values = page.read_saved(position)
            if entries > 1:
                values = values.view(page.rows, entries, *values.shape[1:])
            tensors[place] = values
        for place, wire in layout.wires:
            tensors[place] = reversal.read_uniform(wire)
        for place, number in layout.arenas:
            tensors[place] = reversal.arena(number).values
        return tensors


def bind_half(reversal: Reversal, page: Page, half: Half) -> FusedHalf | None:
    """The half of some rows of a launch, if it can be run compiled."""
    outline = half.outline
    if outline is None or not (page.is_apart or _may_be_compiled(page.launch)):
        return None
    assert half.additions is not None
    ways = tuple([_way(addition) for addition in half.additions[len(outline.uniform) :]])
    key = (half.pattern, ways)
    if key not in outline.layouts:
        form = find_form(reversal, page, half, ways)
        outline.layouts[key] = None if form is None else Layout(form, page, half, ways)
    layout: Layout | None = outline.layouts[key]
    return None if layout is None else FusedHalf(reversal, page, half, layout)


def _may_be_compiled(launch: Launch) -> bool:
    """Whether no slot is both read and written, and each value takes one slot; a launch that ran
    compiled is known to be such.
    """
    items = [item for item in (*launch.operands, *launch.targets) if isinstance(item, Span | Picks)]
    return are_apart(launch) and all(item.length is None for item in items)


def _way(addition: Addition) -> int:
    """How compiled code writes a gradient; 0: it gives it back."""
    assert isinstance(addition, SlotAddition)
    if addition.is_first:
        return WRITTEN
    return 0 if addition.held is None else MERGED


def find_form(reversal: Reversal, page: Page, half: Half, ways: Sequence[int]) -> HalfForm | None:
    """The code of a half, found once for arenas of the same kinds."""
    form, outline, launch = page.form, half.outline, page.launch
    assert isinstance(form, TrainingForm)
    assert outline is not None
    written = tuple(
        (operand, place, way == WRITTEN)
        for (operand, place), way in zip(outline.in_slots, ways, strict=True)
        if way
    )
    sources: list[Any] = [launch.targets[k] for k in half.pattern]
    sources += [launch.operands[k] for k, *_ in written]
    key = (half.pattern, written, *[reversal.arena(item.arena).likeness for item in sources])
    if key not in form.fused_halves:
        form.fused_halves[key] = _half_form(reversal, page, half, written)
    found: HalfForm | None = form.fused_halves[key]
    return found


def _half_form(
    reversal: Reversal, page: Page, half: Half, written: Sequence[tuple[int, int, bool]]
) -> HalfForm | None:
    """The code of all halves like this one, if it can be compiled; `written` are operands with the
    places of their gradients, and whether these are the first.
    """
    form, launch = page.form, page.launch
    assert isinstance(form, TrainingForm)
    targets = [launch.targets[result] for result in half.pattern]
    if page.block.plain_function() is None:
        return None
    backward = form.backward(half.pattern)
    saved = [(k, _entries(page, k)) for k in backward.saved]
    if any(entries < 0 for _, entries in saved):
        return None
    wires = [launch.operands[k].wire for k in backward.uniforms]  # type: ignore[union-attr]
    is_flat = page.block.block.is_flat
    parts = [
        *(_saved_part(page.read_saved(k), entries) for k, entries in saved),
        *(whole_part(reversal.read_uniform(wire)) for wire in wires),
        *(_cotangent_part(reversal.arena(target.arena).values, is_flat) for target in targets),
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
    return HalfForm(known, tuple(saved), backward.uniforms, given)


def _entries(page: Page, position: int) -> int:
    """How many entries of a saved value belong to each row, in front; 0: it has no rows; -1: they
    are elsewhere.
    """
    assert isinstance(page.form, TrainingForm)
    saved, values = page.form.saved[position], page.read_saved(position)
    if saved.dimension is None:
        return 0
    rows = page.computed_rows
    is_whole = saved.dimension == 0 and values.is_contiguous() and not values.shape[0] % rows
    return values.shape[0] // rows if is_whole else -1


def _positions(
    reversal: Reversal, page: Page, half: Half, device: torch.device
) -> torch.Tensor | FindIndex:
    if half.index is not None:
        return reversal.list_rows(half.index, device)
    return count(device, 0, page.rows)


def _saved_part(values: torch.Tensor, entries: int) -> Part:
    if entries <= 1:
        return _rows_part(values) if entries else whole_part(values)
    shape = (entries, *values.shape[1:])
    return Part(Origin.GATHERED, values.dtype, shape, values.device, is_joined=True)


def _rows_part(values: torch.Tensor) -> Part:
    return Part(Origin.GATHERED, values.dtype, tuple(values.shape[1:]), values.device)


def _cotangent_part(values: torch.Tensor, is_flat: bool) -> Part:
    if not is_flat:
        return _rows_part(values)
    shape = (1, *values.shape[1:])
    return Part(Origin.GATHERED, values.dtype, shape, values.device, is_flat=True)


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
