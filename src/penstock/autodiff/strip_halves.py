"""What native code knows of the backward halves of a program's blocks, for tapes of one purpose.

A half is known by its block and by which results have cotangents. All gradients are given to native
code, which writes the first one of a slot and adds others to it, so one form serves all launches.
What is known is handed out as it stands: later additions make new arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.additions import Collection, Outline, UniformAddition, find_outline
from penstock.autodiff.fused_half import HalfForm, find_form
from penstock.autodiff.joint import Pattern, TrainingForm
from penstock.autodiff.page import Page
from penstock.autodiff.way_back import Half
from penstock.plan.schedule import Integers, Launch, Picks, Shared, Span
from penstock.run.strips.code import NativeCode
from penstock.run.strips.forms import native_code, row_bytes
from penstock.run.strips.words import MOST_ITEMS, MOST_RESULTS, SETS, Given, Set, address_of

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.taped_run import TapedRun

#: The types that native code can add.
ADDED_TYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class NativeHalf:
    """The half of a block for one set of results with cotangents."""

    block: int
    code: NativeCode
    #: The uniform values that it reads, and their shapes.
    wires: tuple[int, ...]
    shapes: tuple[torch.Size, ...]
    #: The arenas of the operands whose gradients are added.
    arenas: tuple[int, ...]
    #: What is collected, and which of the values given are its factors.
    collected: tuple[tuple[Collection, tuple[int, ...]], ...]
    #: The uniform values whose gradients are given, and which of the values given these are.
    sums: tuple[tuple[int, int], ...]
    #: What becomes of the value at each pointer.
    given: tuple[Given, ...]
    words: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class KnownHalves:
    """All halves, as far as they are known."""

    #: For each block the results that may have cotangents, then for each set of them where the
    #: words of its half begin.
    half_of: Integers
    words: Integers
    #: Uniform values that halves read.
    wires: tuple[int, ...]
    #: Halves by where their words begin, and the words that a pass has for all of them.
    halves: dict[int, NativeHalf]
    pass_words: int

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """Where sets and words are."""
        return address_of(self.half_of), address_of(self.words)


@dataclass(slots=True, eq=False)
class StripHalves:
    """The halves of the blocks of one program."""

    known: KnownHalves
    #: Whether rows with some cotangents may go with those that have more: for each block, set and
    #: smaller set 0 where that is not known, 1 where they may, 2 where they may not.
    zeros: npt.NDArray[np.uint8]
    _adding: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def of(run: TapedRun) -> StripHalves:
        """Nothing is known yet but what carries gradients."""
        count = len(run.blocks)
        half_of = np.full((count, 1 + SETS), Set.UNKNOWN, np.int64)
        for block in range(count):
            operands, results = run.flows(block)
            is_small = max(results, default=0) < MOST_RESULTS
            flowing = sum(1 << k for k in results) if operands else 0
            half_of[block, 0] = flowing if is_small or not operands else Set.LEFT
        known = KnownHalves(half_of, np.empty(0, np.int64), (), {}, 0)
        return StripHalves(known, np.zeros((count, SETS, SETS), np.uint8))

    def add(self, reversal: Reversal, page: Page, forward: NativeCode, number: int) -> bool:
        """Find the half of a launch for a set of results; False where it is not worth it yet."""
        block = page.launch.block
        if not page.block.is_hot("backward", page.rows):
            return False
        found = _find_half(reversal, page, forward, pattern_of(number))
        with self._adding:
            self.known = _with(self.known, block, number, found)
        return True

    def may_be_zero(self, page: Page, number: int, other: int) -> None:
        """Find out whether rows with a smaller set of cotangents may go with the others."""
        form = page.form
        takes = isinstance(form, TrainingForm) and form.takes_zeros(
            pattern_of(number), pattern_of(other)
        )
        self.zeros[page.launch.block, number, other] = 1 if takes else 2


def pattern_of(number: int) -> Pattern:
    """The results of a set."""
    return tuple(k for k in range(MOST_RESULTS) if number >> k & 1)


def _with(known: KnownHalves, block: int, number: int, found: NativeHalf | None) -> KnownHalves:
    """The same with one half more, or without one for good."""
    half_of = known.half_of.copy()
    if found is None:
        half_of[block, 1 + number] = Set.LEFT
        return KnownHalves(half_of, known.words, known.wires, known.halves, known.pass_words)
    start = half_of[block, 1 + number] = len(known.words)
    wires = dict.fromkeys((*known.wires, *found.wires))
    places = {wire: place for place, wire in enumerate(wires)}
    words = _placed(found, [places[wire] for wire in found.wires], known.pass_words)
    return KnownHalves(
        half_of,
        np.concatenate([known.words, np.array(words, np.int64)]),
        tuple(wires),
        {**known.halves, int(start): found},
        known.pass_words + FACTOR_PLACES + found.code.pointers,
    )


#: Where in the words of a half its own words of a pass are said, and where the uniform values begin
#: behind so many saved ones.
FACTORS, HEAD = 7, 8
#: Its words of a pass: rows that have gone back, rows that there is room for, and places.
GONE_BACK, MOST_BACK, FACTOR_PLACES = range(3)


def _placed(half: NativeHalf, wires: list[int], factors: int) -> list[int]:
    """The words of a half where its uniform values and its words of a pass have places."""
    words = list(half.words)
    words[FACTORS] = factors
    first = HEAD + words[1]
    words[first : first + len(wires)] = wires
    return words


# ---- finding one ---------------------------------------------------------------------------------


def _find_half(
    reversal: Reversal, page: Page, forward: NativeCode, pattern: Pattern
) -> NativeHalf | None:
    """The half of such launches; None where it is left to Python."""
    if not isinstance(page.form, TrainingForm):
        return None
    half = Half(pattern, None, (), page.needs_saved(pattern))
    half.outline = find_outline(reversal, page, page.form.backward(pattern).gradients)
    form = find_form(reversal, page, half, (0,) * len(half.outline.in_slots))
    if form is None or not all(entries for _, entries in form.saved):
        return None
    if any(dtype not in ADDED_TYPES for dtype in _added_types(reversal, page, half)):
        return None
    form.form.ready(page.rows)
    code = native_code(form.form)
    if code is None or len(form.saved) + len(form.uniforms) + len(pattern) > MOST_ITEMS:
        return None
    saved = [forward.results[position].pointer for position, _ in form.saved]
    found = _native(reversal, page, half, form, code, saved)
    return found if _is_sound(found) else None


def _added_types(reversal: Reversal, page: Page, half: Half) -> Iterator[torch.dtype]:
    """The types of the gradients that are added in slots."""
    assert half.outline is not None
    for operand, _ in half.outline.in_slots:
        source = page.launch.operands[operand]
        assert isinstance(source, Span | Picks)
        yield reversal.arena(source.arena).values.dtype


def _native(
    reversal: Reversal,
    page: Page,
    half: Half,
    form: HalfForm,
    code: NativeCode,
    saved: list[int],
) -> NativeHalf:
    launch, outline = page.launch, half.outline
    assert outline is not None
    collected = tuple(
        (item, tuple(form.given.index(place) for place in item.how.places))
        for item in outline.uniform
        if isinstance(item, Collection)
    )
    sums = tuple(
        (item.wire, form.given.index(item.place))
        for item in outline.uniform
        if isinstance(item, UniformAddition)
    )
    factors = [k for _, places in collected for k in places]
    kinds = _kinds(code, factors, [k for _, k in sums])
    pointer_of = {place: made.pointer for place, made in zip(form.given, code.results)}
    added = [word for item in _added(launch, outline, pointer_of) for word in item]
    wires = tuple(launch.operands[k].wire for k in form.uniforms)  # type: ignore[union-attr]
    items = {made.pointer: made.dtype.itemsize for made in code.results}
    given = [word for k, size in enumerate(row_bytes(code)) for word in (kinds[k], size, items[k])]
    shapes = tuple(reversal.read_uniform(wire).shape for wire in wires)
    head = [
        code.words.ctypes.data,
        len(saved),
        len(wires),
        len(half.pattern),
        len(outline.in_slots),
        code.pointers,
        int(half.needs_saved),
        0,
    ]
    words = (*head, *saved, *wires, *half.pattern, *added, *given)
    return NativeHalf(
        launch.block, code, wires, shapes, tuple(added[1::3]), collected, sums, kinds, words
    )


def _kinds(code: NativeCode, factors: Iterable[int], sums: Iterable[int]) -> tuple[Given, ...]:
    """What becomes of the value at each pointer."""
    kinds = [Given.ADDEND] * code.pointers
    for k in factors:
        kinds[code.results[k].pointer] = Given.FACTOR
    for k in sums:
        kinds[code.results[k].pointer] = Given.SUM
    return tuple(kinds)


def _added(
    launch: Launch, outline: Outline, pointer_of: Mapping[int, int]
) -> Iterator[tuple[int, int, int]]:
    """For each operand with gradients in slots its place in the record, its arena, and the pointer
    at which its gradients are.
    """
    for operand, place in outline.in_slots:
        source = launch.operands[operand]
        assert isinstance(source, Span | Picks)
        entry = sum(not isinstance(item, Shared) for item in launch.operands[:operand])
        yield entry, source.arena, pointer_of[place]


def _is_sound(half: NativeHalf) -> bool:
    """Whether sums have no rows, and all else has some, of numbers that can be added up."""
    return all(
        bool(made.entries) == (half.given[made.pointer] is not Given.SUM)
        and (made.dtype in ADDED_TYPES or half.given[made.pointer] is Given.FACTOR)
        for made in half.code.results
    )
