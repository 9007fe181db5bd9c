"""Places the rows of one instance: above what they needed, as a tree where they are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.profiling.rows import InstanceRow

#: How far rows of one height are from each other, where leaves of a tree are 1 apart.
APART = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is."""

    x: float
    y: float


def lay_out_rows(rows: Sequence[InstanceRow]) -> list[Place]:
    """Rows that needed nothing are at the bottom, from left to right; others above the middle of
    what they needed.
    """
    heights: list[int] = []
    for row in rows:
        heights.append(1 + max((heights[other] for other in row.needs), default=-1))
    across: dict[int, float] = {}
    needed = {other for row in rows for other in row.needs}
    leaves = 0
    for root in (number for number in range(len(rows)) if number not in needed):
        work = [root]
        while work:
            number = work[-1]
            missing = [other for other in rows[number].needs if other not in across]
            if number in across or not missing:
                work.pop()
                if number not in across:
                    places = [across[other] for other in rows[number].needs]
                    across[number] = sum(places) / len(places) if places else float(leaves)
                    leaves += not places
            else:
                work += reversed(missing)
    _keep_apart(across, heights)
    return [Place(across[number], float(heights[number])) for number in range(len(rows))]


def _keep_apart(across: dict[int, float], heights: Sequence[int]) -> None:
    """Rows of one height that are in each other's way move to the right; in a tree none is."""
    last: dict[int, float] = {}
    for number in sorted(across, key=lambda number: (across[number], number)):
        left = last.get(heights[number])
        if left is not None and across[number] < left + APART:
            across[number] = left + APART
        last[heights[number]] = across[number]
