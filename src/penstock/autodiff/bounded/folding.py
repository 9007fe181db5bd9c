"""Segments of segments: two neighbours become one that starts from the rows of the first.

Running the first makes the rows of the second, but for those that neither it nor its rows have:
these are kept with its own. In backward the way goes down from a folded segment to one that was
never folded; each step down runs the first half, if the second is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from penstock.autodiff.bounded.ledger import Rows
from penstock.autodiff.bounded.segments import Segment, rows_again
from penstock.plan.schedule import pick
from penstock.run.memory.holdings import Holdings

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded

#: The values of rows, by the identity of the rows.
Values: TypeAlias = dict[int, torch.Tensor]

#: Two to the power of this: more segments than any run has.
MOST_LEVELS = 40


def fold_last(tops: list[Segment], holdings: Holdings, most: int) -> bool:
    """Fold the last two segments, if they were folded equally often, less than `most` times."""
    if len(tops) < 2 or tops[-2].level != tops[-1].level or tops[-1].level >= most:
        return False
    if tops[-1].is_apart:
        return False
    folded = fold(tops[-2], tops[-1], holdings)
    if folded is None:
        tops[-1].is_apart = True
        return False
    tops[-2:] = [folded]
    return True


def fold_pairs(tops: list[Segment], holdings: Holdings, most: int) -> bool:
    """Fold all neighbours that were folded less than `most` times, from the first on; whether there
    were any.
    """
    made: list[Segment] = []
    for segment in tops:
        made.append(segment)
        fold_last(made, holdings, most)
    has_folded = len(made) < len(tops)
    tops[:] = made
    return has_folded


def fold(first: Segment, second: Segment, holdings: Holdings) -> Segment | None:
    """Both as one; None where the first makes less than half of the rows of the second: running it
    once more would cost much and save little.
    """
    assert first.rows is not None
    assert second.rows is not None
    if not first.is_repeatable or not second.is_repeatable:
        return None
    missing = [not first.makes(rows) for rows in second.needs]
    pairs = list(zip(second.needs, missing, strict=True))
    made = sum(rows.bytes for rows, is_missing in pairs if not is_missing)
    if not made or 2 * made < sum(rows.bytes for rows in second.needs):
        return None
    rows = first.rows
    if any(missing):
        values = holdings.fetch(second.rows)
        chosen = [each for each, is_missing in zip(values, missing, strict=True) if is_missing]
        lent = frozenset(second.rows.lent_places())
        rows = rows.joined(holdings.hold(chosen, lent, {}, rows_again))
    holdings.drop(second.rows)
    more = [each for each, is_missing in pairs if is_missing]
    folded = Segment(first.start, needs=[*first.needs, *more], rows=rows, halves=(first, second))
    folded.level = 1 + max(first.level, second.level)
    folded.known = first.known.joined(second.known)
    folded.is_closed, folded.is_recomputed = True, True
    first.rows = second.rows = None
    first.parent = second.parent = folded
    return folded


@dataclass(slots=True, eq=False)
class Frame:
    """A segment on the way down, with the values of the rows that it starts from."""

    segment: Segment
    values: Values
    #: Bytes of values that those above do not have.
    more: int = 0

    def below(self, run: Bounded, leaf: Segment) -> Frame:
        """The half of it that has a segment inside."""
        assert self.segment.halves is not None
        first, second = self.segment.halves
        if first.has(leaf):
            return Frame(first, {id(rows): self.values[id(rows)] for rows in first.needs})
        run.run_again(list(first.leaves), self.values, keeps_pages=False)
        made = {id(rows): run.rows_again(rows) for rows in second.needs if first.makes(rows)}
        given = {id(rows): self.values[id(rows)] for rows in second.needs if id(rows) not in made}
        return Frame(second, {**given, **made}, sum(values.nbytes for values in made.values()))


def gathered(run: Bounded, rows: Rows) -> torch.Tensor:
    """Rows of the arenas at hand, in memory of their own."""
    arena = run.arena(rows.arena)
    if rows.slots is None:
        return arena.chunks[0]
    return arena.gather(pick(rows.arena, rows.slots)).clone()
