"""Launches for distinct rows only: rows that read the same whole numbers have the same results.

A block may read of each row nothing but whole numbers: a leaf looks up the vector of a word, and
multiplies it. Its launch then computes one row for each distinct number and hands the results out
to all rows; a plan knows nothing of it. Whether it pays depends on the numbers, so they are looked
at in every run.

Native code does the same for the launches of strips (`strips/same.hpp`), by the same bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.plan.schedule import Span
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.fused.binding import known_form, run_form
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, contiguous

if TYPE_CHECKING:
    from penstock.run.prepared import PreparedLaunch
    from penstock.run.runner import Runner

log = logging.getLogger("penstock")

#: The rows from which on they are counted, and the share of distinct ones up to which it pays.
LEAST_ROWS, MOST_SHARE = 64, 0.85

_is_always: ContextVar[bool] = ContextVar("distinct_rows_always", default=False)


@contextmanager
def distinct_always() -> Iterator[None]:
    """Launches inside run for distinct rows wherever they can, whether that pays or not."""
    token = _is_always.set(True)
    try:
        yield
    finally:
        _is_always.reset(token)


def is_distinct_always() -> bool:
    """Whether that is so here."""
    return _is_always.get()


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The rows of a launch, each as often as it differs from others."""

    #: For each row of the launch its place among the distinct ones.
    which: torch.Tensor
    count: int
    #: The operands of the launch, those with rows for the distinct ones only.
    arguments: list[torch.Tensor]


def may_be_distinct(step: PreparedLaunch) -> bool:
    """Whether the rows of a launch are worth a look."""
    sharing = step.block.sharing
    if _is_always.get():
        return bool(sharing.whole_numbers)
    if step.launch.rows < LEAST_ROWS:
        return False
    return sharing.has_products and bool(sharing.whole_numbers)


def find_distinct(run: Runner, step: PreparedLaunch) -> DistinctRows | None:
    """The distinct rows of a launch; None where it is to be run for all rows."""
    if not run.may_share(step) or run.checks_nan:
        return None
    found = step.arguments(run)
    arguments = [item for item in found if isinstance(item, torch.Tensor)]
    if len(arguments) < len(found):
        return None
    rows, places = step.launch.rows, step.block.sharing.whole_numbers
    most = rows if _is_always.get() else int(MOST_SHARE * rows)
    which = _distinct([arguments[k].reshape(rows) for k in places], most)
    if which is None:
        return None
    count = int(which.max()) + 1
    examples = which.new_empty(count).scatter_(0, which, torch.arange(rows, device="cpu"))
    for k in places:
        arguments[k] = arguments[k].index_select(0, examples)
    return DistinctRows(which, count, arguments)


def _distinct(columns: Sequence[torch.Tensor], most: int) -> torch.Tensor | None:
    """For each row its place among the distinct rows of whole numbers; None where there are more
    than so many.
    """
    which: torch.Tensor | None = None
    for column in columns:
        values, places = torch.unique(column, return_inverse=True)
        if which is not None:
            values, places = torch.unique(which * len(values) + places, return_inverse=True)
        if len(values) > most:
            return None
        which = places
    return which


def launch_distinct(run: Runner, step: PreparedLaunch) -> bool:
    """Do a launch for its distinct rows; False where it must be done for all of them."""
    rows = find_distinct(run, step)
    if rows is None:
        return False
    function, results = step.block.function_for(rows.arguments), len(step.launch.targets)
    made = run_distinct(step.block, "inference", function, rows, results)
    if made is None:
        return False
    hand_out(run, step, rows, made[0])
    return True


def run_distinct(
    block: RunnableBlock, half: str, function: BatchFunction, rows: DistinctRows, results: int
) -> tuple[Sequence[torch.Tensor], bool] | None:
    """What a function of a block gives for distinct rows; None where it fails: the usual way tells
    for which of all rows.
    """
    is_row = [spec.kind == "row" for spec in block.inputs]
    try:
        return run_rows(block, half, function, rows.count, rows.arguments, is_row, results)
    except Exception as error:
        log.debug("%s failed for distinct rows: %s", block.name, error)
        return None


def run_rows(
    block: RunnableBlock,
    half: str,
    function: BatchFunction,
    rows: int,
    tensors: Sequence[torch.Tensor],
    is_row: Sequence[bool],
    results: int,
) -> tuple[Sequence[torch.Tensor], bool]:
    """What a half of a block gives for tensors that have rows, or are the same for all; whether
    nobody else knows of its memory. Compiled, if the block is worth it by now.
    """
    if not block.is_hot(half, rows) or not contiguous(tensors):
        return function(rows, *tensors), False
    parts = tuple(map(_part, tensors, is_row))
    form = known_form(block, LaunchCode(function, parts, (None,) * results), half)
    return run_form(form, rows, list(tensors)), form.compiled is not None and form.gives_own


def _part(tensor: torch.Tensor, is_row: bool) -> Part:
    if is_row:
        return Part(Origin.GIVEN, tensor.dtype, tuple(tensor.shape[1:]), tensor.device)
    return Part(Origin.UNIFORM, tensor.dtype, tuple(tensor.shape), tensor.device)


def hand_out(
    run: Runner, step: PreparedLaunch, rows: DistinctRows, results: Sequence[torch.Tensor]
) -> None:
    """Write the results of the distinct rows to the slots of all."""
    places = [_place(run, target) for target in step.launch.targets]
    if any(place is None for place in places):
        step.store(run, [values.index_select(0, rows.which) for values in results])
        return
    for place, values in zip(places, results, strict=True):
        assert place is not None
        values = values.reshape(rows.count, *place.shape[1:])
        torch.index_select(values, 0, rows.which, out=place)


def _place(run: Runner, target: object) -> torch.Tensor | None:
    """Where the values of slots are, if they follow each other."""
    if not isinstance(target, Span) or target.is_whole or target.length is not None:
        return None
    arena = run.arena(target.arena)
    chunk = arena.chunk_of(target)
    if chunk is None:
        return None
    first = target.start - arena.starts[chunk]
    return arena.chunks[chunk][first : first + target.count]
