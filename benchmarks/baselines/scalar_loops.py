"""Loops over scalars by hand: all rows until the last is done, or without those that are.

A loop is a condition and a step on carried columns; both work on one row as well as on many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Condition = Callable[..., Tensor]
Step = Callable[..., Sequence[Tensor]]


def masked(condition: Condition, step: Step, columns: Sequence[Tensor]) -> list[Tensor]:
    """All rows take every step; those that are done keep what they have."""
    values = list(columns)
    while bool((running := condition(*values)).any()):
        pairs = zip(step(*values), values, strict=True)
        values = [torch.where(running, new, old) for new, old in pairs]
    return values


def compacting(condition: Condition, step: Step, columns: Sequence[Tensor]) -> list[Tensor]:
    """Only rows that run take a step; the others wait in their places."""
    values = list(columns)
    rows = torch.arange(len(values[0]), device=values[0].device)
    ended: list[tuple[Tensor, list[Tensor]]] = []
    while len(rows):
        running = condition(*values)
        done = (~running).nonzero().squeeze(1)
        if len(done):
            ended.append((rows[done], [value[done] for value in values]))
            still = running.nonzero().squeeze(1)
            rows, values = rows[still], [value[still] for value in values]
        if len(rows):
            values = list(step(*values))
    order = torch.cat([places for places, _ in ended]).argsort()
    parts = zip(*(kept for _, kept in ended), strict=True)
    return [torch.cat(part)[order] for part in parts]


def compiled_masked(condition: Condition, step: Step) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """`masked` with a compiled step."""

    @torch.compile(dynamic=False)
    def advance(*values: Tensor) -> tuple[Tensor, ...]:
        running = condition(*values)
        pairs = zip(step(*values), values, strict=True)
        made = [torch.where(running, new, old) for new, old in pairs]
        return (*made, condition(*made).any())

    def run(columns: Sequence[Tensor]) -> list[Tensor]:
        values = list(columns)
        goes_on = bool(condition(*values).any())
        while goes_on:
            *values, last = advance(*values)
            goes_on = bool(last)
        return values

    return run
