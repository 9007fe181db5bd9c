"""What native code knows of the backward halves of a program's blocks, for tapes of one purpose.

A half is known by its block and by which results have cotangents. All gradients are given to native
code, which writes the first one of a slot and adds others to it, so one form serves all launches.
What is known is handed out as it stands: later additions make new arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.additions import Outline, find_outline
from penstock.autodiff.fused_half import HalfForm, find_form
from penstock.autodiff.joint import Pattern, TrainingForm
from penstock.autodiff.page import Page
from penstock.autodiff.strip_gathering import (
    ADDED_TYPES,
    GATHERED_WORDS,
    GRADIENT,
    Gathered,
    find_gathered,
    kinds_of,
)
from penstock.autodiff.way_back import Half
from penstock.plan.schedule import Integers, Launch, Picks, Shared, Span
from penstock.run.strips.code import NativeCode
from penstock.run.strips.forms import native_code, row_bytes
from penstock.run.strips.words import MOST_ITEMS, MOST_RESULTS, SETS, Given, Set, address_of

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.taped_run import TapedRun


@dataclass(frozen=True, slots=True, eq=False)
class NativeHalf:
    """The half of a block for one set of results with cotangents."""

    block: int
    code: NativeCode
    #: The uniform values that it reads, and their shapes and types.
    wires: tuple[int, ...]
    likenesses: tuple[tuple[torch.Size, torch.dtype], ...]
    #: The arenas of the operands whose gradients are added.
    arenas: tuple[int, ...]
    #: What it gives for the gradients of uniform values.
    gathered: tuple[Gathered, ...]
    #: The bytes of a row of each factor.
    factor_bytes: tuple[int, ...]
    words: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class KnownHalves:
    """All halves, as far as they are known."""

    #: For each block the results that may have cotangents, then for each set of them where the
    #: words of its half begin.
    half_of: Integers
    words: Integers
    #: Uniform values that halves read, and those to whose gradients they add.
    wires: tuple[int, ...]
    gathering: tuple[int, ...]
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
        known = KnownHalves(half_of, np.empty(0, np.int64), (), (), {}, 0)
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


def likeness_of(values: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    """What code that reads a value was made for."""
    return values.shape, values.dtype


def pattern_of(number: int) -> Pattern:
    """The results of a set."""
    return tuple(k for k in range(MOST_RESULTS) if number >> k & 1)


def _with(known: KnownHalves, block: int, number: int, found: NativeHalf | None) -> KnownHalves:
    """The same with one half more, or without one for good."""
    half_of = known.half_of.copy()
    if found is None:
        half_of[block, 1 + number] = Set.LEFT
        return replace(known, half_of=half_of)
    start = half_of[block, 1 + number] = len(known.words)
    wires = tuple(dict.fromkeys((*known.wires, *found.wires)))
    given = (item.wire for item in found.gathered)
    gathering = tuple(dict.fromkeys((*known.gathering, *given)))
    words = _placed(found, wires, gathering, known.pass_words)
    return KnownHalves(
        half_of,
        np.concatenate([known.words, np.array(words, np.int64)]),
        wires,
        gathering,
        {**known.halves, int(start): found},
        known.pass_words + PASS_WORDS,
    )


#: Where in the words of a half its own words of a pass are said, and where the uniform values begin
#: behind so many saved ones.
FACTORS, HEAD = 8, 9
#: Its words of a pass: rows whose factors wait, rows that there is room for, and where that is.
WAITING, MOST_WAITING, MEMORY = range(3)
PASS_WORDS = 3


def _placed(
    half: NativeHalf, wires: tuple[int, ...], gathering: tuple[int, ...], factors: int
) -> list[int]:
    """The words of a half where its uniform values, their gradients and its words of a pass have
    places.
    """
    words = list(half.words)
    words[FACTORS] = factors
    first = HEAD + words[1]
    words[first : first + len(half.wires)] = map(wires.index, half.wires)
    first = len(words) - GATHERED_WORDS * len(half.gathered) + GRADIENT
    words[first::GATHERED_WORDS] = (gathering.index(item.wire) for item in half.gathered)
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
    gathered = find_gathered(half.outline, form.given, code)
    if gathered is None or not _is_sound(code, kinds_of(gathered, code.pointers)):
        return None
    saved = [forward.results[position].pointer for position, _ in form.saved]
    return _native(reversal, page, half, form, code, saved, gathered)


def _added_types(reversal: Reversal, page: Page, half: Half) -> Iterator[torch.dtype]:
    """The types of the gradients that are added in slots: those of operands, and of results where
    rows are the same.
    """
    assert half.outline is not None
    sources: list[Any] = [page.launch.operands[operand] for operand, _ in half.outline.in_slots]
    if page.block.sharing.whole_numbers:
        sources += [page.launch.targets[result] for result in half.pattern]
    for source in sources:
        yield reversal.arena(source.arena).values.dtype


def _native(
    reversal: Reversal,
    page: Page,
    half: Half,
    form: HalfForm,
    code: NativeCode,
    saved: list[int],
    gathered: tuple[Gathered, ...],
) -> NativeHalf:
    launch, outline = page.launch, half.outline
    assert outline is not None
    kinds, sizes = kinds_of(gathered, code.pointers), row_bytes(code)
    pointer_of = {place: made.pointer for place, made in zip(form.given, code.results)}
    added = [word for item in _added(launch, outline, pointer_of) for word in item]
    wires = tuple(launch.operands[k].wire for k in form.uniforms)  # type: ignore[union-attr]
    likenesses = tuple(likeness_of(reversal.read_uniform(wire)) for wire in wires)
    head = [
        code.words.ctypes.data,
        len(saved),
        len(wires),
        len(half.pattern),
        len(outline.in_slots),
        code.pointers,
        len(gathered),
        int(half.needs_saved),
        0,
    ]
    given = [word for pair in zip(kinds, sizes) for word in pair]
    collected = [word for item in gathered for word in item.words]
    words = (*head, *saved, *wires, *half.pattern, *added, *given, *collected)
    factor_bytes = tuple(size for kind, size in zip(kinds, sizes) if kind is Given.FACTOR)
    arenas = tuple(added[1::3])
    return NativeHalf(launch.block, code, wires, likenesses, arenas, gathered, factor_bytes, words)


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


def _is_sound(code: NativeCode, kinds: Sequence[Given]) -> bool:
    """Whether sums have no rows, and all else has some, of numbers that can be added up."""
    return all(
        bool(made.entries) == (kinds[made.pointer] is not Given.SUM)
        and (made.dtype in ADDED_TYPES or kinds[made.pointer] is Given.FACTOR)
        for made in code.results
    )
