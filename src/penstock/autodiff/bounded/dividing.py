"""Wide launches under a budget: they run in pieces of rows, each with a page of its own.

What one launch saves is the least that is held, so a launch whose page would take more than a share
of the budget is divided. How wide pieces are follows from the plan, what a row saves, and the
budget: later calls with the same plan find the same pieces. Launches whose rows are of many sizes,
and those that save what nobody has counted, stay whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.plan.divided import may_be_divided, piece_of, pieces_of_rows
from penstock.run.fused.binding import are_apart
from penstock.run.fused.indices import Indices
from penstock.run.prepared import Prepared, PreparedLaunch

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded

#: Fewer rows take about as long to launch.
LEAST_ROWS = 16


def page_bytes(run: Bounded, step: Prepared) -> int:
    """Bytes that a launch will save, as far as that is known before."""
    return run.rows_saved(step) * _row_bytes(run, step) if isinstance(step, PreparedLaunch) else 0


def _row_bytes(run: Bounded, step: PreparedLaunch) -> int:
    """Bytes that a launch saves for each row; 0 where nothing is saved or nobody knows."""
    number = step.launch.block
    if number not in run.row_bytes:
        run.row_bytes[number] = _find_row_bytes(run, number)
    return run.row_bytes[number]


def _find_row_bytes(run: Bounded, number: int) -> int:
    operands, results = run.flows(number)
    if not operands or not results or not run.blocks[number].is_uniform:
        return 0
    try:
        form = run.whole_form(number)
    except Exception:  # the launch will fail as well, and tell for which instance
        return 0
    return 0 if form is None else form.row_bytes


def find_pieces(run: Bounded, step: PreparedLaunch, share: int) -> tuple[PreparedLaunch, ...]:
    """The pieces of a launch whose pages take at most a share of the budget; the launch itself
    where it is not divided.
    """
    rows = step.launch.rows
    if rows <= LEAST_ROWS:
        return (step,)
    size = _row_bytes(run, step)
    width = max(LEAST_ROWS, share // size) if size else rows
    if width >= rows or not may_be_divided(step.launch):
        return (step,)
    known = step.pieces  # other threads may divide it otherwise
    if known is None or known[0] != width:
        if not run.keeps_apart and not are_apart(step.launch):
            return (step,)
        known = step.pieces = width, _divided(step, width)
    return known[1]


def _divided(step: PreparedLaunch, width: int) -> tuple[PreparedLaunch, ...]:
    launch, indices = step.launch, Indices()
    return tuple(
        PreparedLaunch(
            piece_of(launch, rows), step.block, step.instances[rows.start : rows.stop], indices
        )
        for rows in pieces_of_rows(launch.rows, width)
    )
