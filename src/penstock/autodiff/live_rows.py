"""Which rows of a tape to run again: those that some slots depend on, and those of them through
which gradients flow, grouped by the results that have cotangents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.autodiff.joint import Pattern, TrainingForm
from penstock.autodiff.padding import mark_sources
from penstock.autodiff.page import Page
from penstock.autodiff.patterns import patterns
from penstock.plan.schedule import Copy, Integers, Pad, Picks, Span, Unpad, slots_of

Marks = list[npt.NDArray[np.bool_]]
#: Rows of a launch, and the results that are read, or have cotangents, in them.
Group = tuple[Pattern, Integers]


def live_rows(
    entries: Sequence[object],
    present: Marks,
    *,
    is_flowing: bool = False,
    other: Callable[[object, Marks], None] | None = None,
) -> list[list[Group]]:
    """For each entry the rows that the marked slots depend on, or those from which gradients flow
    to them, with the results that have cotangents; nothing for entries without rows. `other` moves
    the marks of entries that are not of this process alone.
    """
    found: list[list[Group]] = []
    for entry in reversed(entries):
        if isinstance(entry, Page):
            found.append(_live_rows_of(entry, present, is_flowing))
            continue
        if isinstance(entry, Copy):
            targets, sources = slots_of(entry.target), slots_of(entry.source)
            held = present[entry.target.arena][targets]
            present[entry.target.arena][targets] = False
            chosen = sources.reshape(len(targets), -1)[held].reshape(-1)
            present[entry.source.arena][chosen] = True
        elif isinstance(entry, Pad | Unpad):
            mark_sources(entry, present)
        elif other is not None:
            other(entry, present)
        found.append([])
    return found[::-1]


def _live_rows_of(page: Page, present: Marks, is_flowing: bool) -> list[Group]:
    held: dict[int, npt.NDArray[np.bool_]] = {}
    for position, target in enumerate(page.launch.targets):
        slots = slots_of(target)
        if len(slots):
            if not is_flowing or position in page.results:
                marks = present[target.arena][slots].reshape(page.rows, -1)
                if marks.any():
                    held[position] = np.logical_or.reduce(marks, axis=1)
            present[target.arena][slots] = False
    if not held:
        return []
    live = np.flatnonzero(np.logical_or.reduce(list(held.values())))
    if not is_flowing:
        _mark_operands(page, range(len(page.launch.operands)), live, present)
        return [(tuple(held), live)]
    grouped = patterns(held, page.rows, page.form)
    groups = [(pattern, live if rows is None else rows) for pattern, rows in grouped]
    for pattern, rows in groups:
        _mark_operands(page, _reached_operands(page, pattern), rows, present)
    return groups


def _mark_operands(page: Page, positions: Iterable[int], rows: Integers, present: Marks) -> None:
    for position in positions:
        operand = page.launch.operands[position]
        if isinstance(operand, Span | Picks):
            slots = slots_of(operand)
            if len(slots):
                present[operand.arena][slots.reshape(page.rows, -1)[rows].reshape(-1)] = True


def _reached_operands(page: Page, pattern: Pattern) -> Sequence[int]:
    """The operands that gradients flow to, as far as that is known without running anything."""
    if not isinstance(page.form, TrainingForm):
        return page.operands
    places = page.form.backward(pattern).gradients
    found = zip(page.operands, places, strict=True)
    return [operand for operand, place in found if place is not None]


def with_rest(live: list[Group], flowing: list[Group]) -> Iterator[Group]:
    """The groups of rows through which gradients flow, then the rows that are only read."""
    yield from flowing
    for _, rows in live:
        rest = np.setdiff1d(rows, np.concatenate([rows[:0], *(group for _, group in flowing)]))
        if len(rest):
            yield (), rest
