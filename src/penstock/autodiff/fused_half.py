"""The backward half of a launch as compiled code: cotangents are gathered, gradients written.

Gradients that are the first for their slots are written by the code itself; those that have to be
added, and factors of weight gradients, are given back. Saved values are gathered too, since a half
may be that of some rows only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.contract import Contraction
from penstock.autodiff.joint import Backward, TrainingForm
from penstock.plan.schedule import Picks, Span
from penstock.run.fused.binding import Find, FusedLaunch, are_apart, known_form
from penstock.run.fused.indices import FindIndex
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.tape import Page
    from penstock.autodiff.way_back import Half


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """Where a reversal finds what a half reads: in the page, and in itself."""

    reversal: Reversal
    page: Page


@dataclass(frozen=True, slots=True, eq=False)
class FusedHalf:
    """A backward half of a plan that may be run compiled."""

    launch: FusedLaunch
    #: For each result whether it is written.
    is_written: tuple[bool, ...]

    def run(self, reversal: Reversal, page: Page) -> list[torch.Tensor | None] | None:
        """The results, None for those that are written; or None, where it must be done the plain
        way.
        """
        given = self.launch.run(Way(reversal, page))
        if given is None:
            return None
        remaining = iter(given)
        return [None if written else next(remaining) for written in self.is_written]


def bind_half(reversal: Reversal, page: Page, half: Half) -> FusedHalf | None:
    """The half of some rows of a launch, if it can be run compiled."""
    form = page.form
    if not isinstance(form, TrainingForm) or page.block.plain_function() is None:
        return None
    if not page.is_apart and not are_apart(page.launch):
        return None
    backward = form.backward(half.pattern)
    rows = page.rows if half.index is None else len(half.index)
    inputs = [*_saved(reversal, page, half, backward), *_uniforms(reversal, page, backward)]
    inputs += [_cotangent(reversal, page, half, result) for result in half.pattern]
    known = [item for item in inputs if item is not None]
    if len(known) != len(inputs) or len({part.device for part, _ in known}) != 1:
        return None
    written = _written(page, half, backward)
    results, finds = _results(reversal, page, half, written, _count(backward))
    code = LaunchCode(backward.function, tuple(part for part, _ in known), results)
    launch = FusedLaunch(
        known_form(page.block, code, "backward"),
        rows,
        [*(find for _, own in known for find in own), *finds],
    )
    return FusedHalf(launch, tuple(result is not None for result in results))


_Input = tuple[Part, tuple[Find, ...]]


def _saved(
    reversal: Reversal, page: Page, half: Half, backward: Backward
) -> Iterator[_Input | None]:
    """What the forward half has left: one entry a row, or the same for all."""
    assert isinstance(page.form, TrainingForm)
    rows: FindIndex | None = None
    for position in backward.saved:
        values, saved = page.saved[position], page.form.saved[position]
        find = _saved_value(position)
        if saved.dimension is None:
            yield _part(Origin.UNIFORM, values, values.shape), (find,)
        elif saved.dimension == 0 and values.shape[0] == page.rows:
            rows = rows or _positions(reversal, page, half, values.device)
            yield _part(Origin.GATHERED, values, values.shape[1:]), (find, rows)
        else:
            yield None


def _positions(reversal: Reversal, page: Page, half: Half, device: torch.device) -> FindIndex:
    """The rows of a half, among those of the launch."""
    if half.index is not None:
        return reversal.indices.wait(half.index, device)
    return page.indices.of(Span(0, 0, page.rows), device)


def _saved_value(position: int) -> Find:
    return lambda way: way.page.read_saved(position)


def _uniforms(reversal: Reversal, page: Page, backward: Backward) -> Iterator[_Input]:
    for operand in backward.uniforms:
        wire = page.launch.operands[operand].wire  # type: ignore[union-attr]
        values = reversal.taped.read_uniform(wire)
        yield _part(Origin.UNIFORM, values, values.shape), (_uniform(wire),)


def _uniform(wire: int) -> Find:
    return lambda way: way.reversal.taped.read_uniform(wire)


def _cotangent(reversal: Reversal, page: Page, half: Half, result: int) -> _Input | None:
    """Cotangents in the slots of a result; every row of the half has one."""
    target = page.launch.targets[result]
    arena = reversal.arena(target.arena)
    if target.length is not None:
        return None
    part = _part(Origin.GATHERED, arena.values, arena.kind.shape)
    return part, _slots(reversal, page, half, target)


def _slots(reversal: Reversal, page: Page, half: Half, source: Span | Picks) -> tuple[Find, Find]:
    """The gradients of an arena, and slots of it."""
    number = source.arena
    index = reversal.finding(page, source, half.index)
    return (lambda way: way.reversal.arena(number).values), index


def _part(origin: Origin, values: torch.Tensor, shape: Sequence[int]) -> Part:
    return Part(origin, values.dtype, tuple(shape), values.device)


def _count(backward: Backward) -> int:
    """How many results a backward half has."""
    return 1 + max(_uses(backward), default=-1)


def _uses(backward: Backward) -> Counter[int]:
    """How often each result is used."""
    return Counter(place for places in map(_places, backward.gradients) for place in places)


def _places(place: int | Contraction | None) -> tuple[int, ...]:
    if place is None:
        return ()
    return place.places if isinstance(place, Contraction) else (place,)


def _written(page: Page, half: Half, backward: Backward) -> dict[int, int]:
    """For each result that is only written, the operand whose gradient it is."""
    uses, operands = _uses(backward), page.launch.operands
    firsts = [(add.written, add.operand) for add in half.adds or () if add.written is not None]
    return {
        place: operand
        for place, operand in firsts
        if uses[place] == 1 and operands[operand].length is None  # type: ignore[union-attr]
    }


def _results(
    reversal: Reversal, page: Page, half: Half, written: dict[int, int], count: int
) -> tuple[tuple[Written | None, ...], list[Find]]:
    """What becomes of each result, and where the written ones go."""
    results: list[Written | None] = [None] * count
    finds: list[Find] = []
    for place in sorted(written):
        source = page.launch.operands[written[place]]
        assert isinstance(source, Span | Picks)
        arena = reversal.arena(source.arena)
        results[place] = Written(arena.values.dtype, arena.kind.shape, arena.device)
        finds += _slots(reversal, page, half, source)
    return tuple(results), finds
