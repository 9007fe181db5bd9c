"""Slots at the beginning of arenas that have no part in a backward pass, so that they get no memory
in it: those of large inputs whose gradients nobody asks for.

Inputs lie in front of what is computed. A program may still send a cotangent there, where a value
is an input in one row and computed in another: slots from the first such one on have memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

from penstock.autodiff.page import Page
from penstock.plan.outcome import InBoxes, InRuns, InSlots, Outcome
from penstock.plan.schedule import Copy, Kind, Pad, Picks, Span, Unpad, slot_count
from penstock.plan.slots import LARGE

if TYPE_CHECKING:
    from penstock.autodiff.tape import Entry, Tape


def find_leading(
    extents: Sequence[tuple[Kind, int]],
    unasked: Iterable[Span],
    tape: Tape,
    outcome: Outcome,
) -> dict[int, int]:
    """For each arena how many of its first slots need no gradients, where these are many; entries
    of the tape may have to be made, so only then they are looked at.
    """
    leading: dict[int, int] = {}
    for span in sorted(unasked, key=lambda span: (span.arena, span.start)):
        if span.start == leading.get(span.arena, 0):
            leading[span.arena] = span.start + span.count
    found = _large(leading, extents)
    if not found:
        return found
    for arena, first in (*_results(outcome), *_touched(tape.entries)):
        if first < found.get(arena, 0):
            found[arena] = first
    return _large(found, extents)


def _large(leading: dict[int, int], extents: Sequence[tuple[Kind, int]]) -> dict[int, int]:
    """Those that take much memory."""
    return {k: n for k, n in leading.items() if n * prod(extents[k][0].shape) > LARGE}


def _results(outcome: Outcome) -> Iterator[tuple[int, int]]:
    """The first slots in which cotangents come in."""
    for where in outcome.results:
        if isinstance(where, InSlots) and len(where.slots):
            yield where.arena, int(where.slots.min())
        elif isinstance(where, InRuns) and len(where.base):
            yield where.arena, int(where.base.min())
        elif isinstance(where, InBoxes):
            yield from zip(where.arenas.tolist(), where.slots.tolist(), strict=True)


def _touched(entries: Iterable[Entry]) -> Iterator[tuple[int, int]]:
    """The first slot of all that a backward pass through a tape reads or writes together."""
    for source in _sources(entries):
        if slot_count(source):
            first = source.start if isinstance(source, Span) else int(source.slots.min())
            yield source.arena, first


def _sources(entries: Iterable[Entry]) -> Iterator[Span | Picks]:
    for entry in entries:
        if isinstance(entry, Page):
            operands, targets = entry.launch.operands, entry.launch.targets
            for position in entry.operands:
                operand = operands[position]
                if isinstance(operand, Span | Picks):
                    yield operand
            yield from (targets[position] for position in entry.results)
        elif isinstance(entry, Copy | Pad | Unpad):
            yield entry.source
            yield entry.target
