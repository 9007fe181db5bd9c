"""Results of a call: from the home device to every rank, in one message whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.distributed.messages import aligned
from penstock.distributed.turns import Rows, Spread
from penstock.plan.outcome import InBoxes, OnHost, Where
from penstock.plan.schedule import Picks, Span, pick

if TYPE_CHECKING:
    from penstock.distributed.run import Placing


def spread_results(run: Placing) -> None:
    """Bring results to where they are collected, on every rank."""
    places = [rows for where in run.outcome.results for rows in _places_of(where)]
    for number in {rows.arena for rows in places if not run.is_mine(rows.arena)}:
        arena = run.arena(number)
        arena.forget()  # inputs were there, and are among the results that come
        arena.grow(0, run.outcome.extents[number].end)
    parts: dict[torch.device, list[Spread]] = {}
    for place in places:
        part = run.spread_of(place, "results")
        parts.setdefault(part.rows.device, []).append(part)
    for device, each in parts.items():
        _spread(run, device, each)


def _spread(run: Placing, device: torch.device, parts: Sequence[Spread]) -> None:
    """One message for results on the home device, or on the host for it."""
    source, ends = parts[0].source, list(accumulate(aligned(_size(part.rows)) for part in parts))
    is_mine = source == run.transport.rank
    mine = _packed(run, parts, ends[-1]) if is_mine else None
    room = Rows((ends[-1],), torch.uint8, device, "results")
    told = run.transport.broadcast(mine, room, source)
    if is_mine:
        return
    for part, start in zip(parts, (0, *ends), strict=False):
        values = told[start : start + _size(part.rows)].view(part.rows.dtype)
        run.arena(part.slots.arena).write(part.slots, values.view(part.rows.shape))


def _packed(run: Placing, parts: Sequence[Spread], size: int) -> torch.Tensor:
    pieces = []
    for part in parts:
        rows = run.fetched(part, part.slots).contiguous().reshape(-1).view(torch.uint8)
        pieces += [rows, rows.new_zeros(aligned(len(rows)) - len(rows))]
    packed = torch.cat(pieces)
    assert len(packed) == size
    return packed


def _size(rows: Rows) -> int:
    return int(np.prod(rows.shape)) * rows.dtype.itemsize


def _places_of(where: Where | OnHost) -> Iterator[Span | Picks]:
    """The rows of an output."""
    if isinstance(where, OnHost):
        return
    if isinstance(where, InBoxes):
        for number in np.unique(where.arenas).tolist():
            yield pick(number, where.slots[where.arenas == number])
        return
    number, slots = where.of(slice(None))
    if len(slots):
        yield pick(number, slots)
