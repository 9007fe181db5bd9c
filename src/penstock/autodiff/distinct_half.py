"""The backward half of a launch that was run for distinct rows only.

Cotangents of rows that are the same are added up first; the half then runs for the distinct rows,
as many as some cotangent reaches: it is linear in cotangents. Such a block reads whole numbers, so
all its gradients are those of uniform values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.joint import Backward, TrainingForm
from penstock.run.distinct import run_rows

if TYPE_CHECKING:
    from penstock.autodiff.page import Page
    from penstock.autodiff.reverse import Reversal
    from penstock.autodiff.way_back import Half


def run_distinct_half(reversal: Reversal, page: Page, half: Half) -> None:
    """Run a half of a page whose saved values are those of distinct rows."""
    form = page.form
    assert isinstance(form, TrainingForm)
    assert half.additions is not None
    backward = form.backward(half.pattern)
    which, count, saved = _reached(page, half, backward)
    summed = [_summed(rows, which, count) for rows in reversal.cotangents(page, half)]
    wires = [page.launch.operands[k].wire for k in backward.uniforms]  # type: ignore[union-attr]
    uniforms = [reversal.read_uniform(wire) for wire in wires]
    tensors = [*saved, *uniforms, *summed]
    results: Sequence[torch.Tensor]
    if not _are_in_front(form, backward, saved, count):
        results, is_own = backward.function(count, *tensors), False
    else:
        is_row = [form.saved[k].dimension == 0 for k in backward.saved]
        is_row += [False] * len(uniforms) + [True] * len(summed)
        results, is_own = run_rows(
            page.block, "backward", backward.function, count, tensors, is_row, backward.given
        )
    for addition in half.additions:
        addition.run(reversal, results, is_own=is_own)


def _reached(
    page: Page, half: Half, backward: Backward
) -> tuple[torch.Tensor, int, list[torch.Tensor]]:
    """For each row of a half which of the distinct rows that are reached it is, how many these are,
    and what was saved of them.
    """
    assert page.distinct is not None
    assert isinstance(page.form, TrainingForm)
    which, count = page.distinct
    saved = [page.read_saved(k) for k in backward.saved]
    if half.index is None:
        return which, count, saved
    chosen = which[torch.from_numpy(half.index)]
    reached, which = torch.unique(chosen, return_inverse=True)
    facts = [page.form.saved[k] for k in backward.saved]
    selected = [fact.select(values, count, reached) for fact, values in zip(facts, saved)]
    return which, len(reached), selected


def _summed(rows: torch.Tensor, which: torch.Tensor, count: int) -> torch.Tensor:
    """The cotangents of all rows that are the same, added up."""
    return rows.new_zeros(count, *rows.shape[1:]).index_add_(0, which, rows)


def _are_in_front(
    form: TrainingForm, backward: Backward, saved: Sequence[torch.Tensor], count: int
) -> bool:
    """Whether saved values have one entry for each row in front, or no rows at all."""
    places = [form.saved[k].dimension for k in backward.saved]
    pairs = zip(places, saved, strict=True)
    return all(place is None or (not place and len(rows) == count) for place, rows in pairs)
