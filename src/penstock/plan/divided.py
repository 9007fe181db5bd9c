"""A launch in pieces of rows: each is a launch of the same block with slots of its own.

Rows of a launch know nothing of each other, so any piece may run before any other, unless one
writes what another reads: whoever divides a launch makes sure that none does.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.plan.schedule import Hosted, Launch, Operand, Picks, Span, Target, pick


def pieces_of_rows(rows: int, width: int) -> Iterator[range]:
    """Rows in as few pieces as there are of at most so many, all about as wide."""
    count = -(-rows // width)
    ends = [rows * k // count for k in range(count + 1)]
    return map(range, ends, ends[1:])


def may_be_divided(launch: Launch) -> bool:
    """Whether each row has slots of its own for all results, and host values of its own."""
    hosted = [item.values for item in launch.operands if isinstance(item, Hosted)]
    is_whole = any(isinstance(target, Span) and target.is_whole for target in launch.targets)
    return not is_whole and all(len(values) == launch.rows for values in hosted)


def piece_of(launch: Launch, rows: range) -> Launch:
    """The launch for some of its rows."""
    operands = tuple(_operand(operand, rows, launch.rows) for operand in launch.operands)
    targets = tuple(_slots(target, rows, launch.rows) for target in launch.targets)
    return Launch(launch.block, len(rows), operands, targets)


def _operand(operand: Operand, rows: range, count: int) -> Operand:
    if isinstance(operand, Hosted):
        return Hosted(operand.values[rows.start : rows.stop])
    return _slots(operand, rows, count) if isinstance(operand, Span | Picks) else operand


def _slots(source: Target, rows: range, count: int) -> Target:
    """The slots of some rows; each has as many."""
    if isinstance(source, Span):
        each = source.count // count
        start = source.start + rows.start * each
        return source._replace(start=start, count=len(rows) * each)
    each = len(source.slots) // count
    slots = source.slots[rows.start * each : rows.stop * each]
    return pick(source.arena, slots, source.length)
