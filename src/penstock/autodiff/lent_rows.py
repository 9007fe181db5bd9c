"""Rows of inputs that a launch has read: they lie in the caller's memory, and are not copied.

A launch that saves rows of its operands, and nothing that it computes from them, gives copies of
those that are made by other launches, whose slots are used again. Rows that follow each other in an
input are looked at where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.joint import TrainingForm
from penstock.plan.schedule import Span
from penstock.run.prepared import PreparedLaunch

if TYPE_CHECKING:
    from penstock.run.runner import Runner


@dataclass(frozen=True, slots=True)
class LentRow:
    """Rows of an input: the arena, the chunk, and which rows of it."""

    arena: int
    chunk: int
    first: int
    end: int

    def find(self, run: Runner) -> torch.Tensor:
        """The rows."""
        return run.arenas[self.arena].chunks[self.chunk][self.first : self.end]


@dataclass(frozen=True, slots=True)
class LentRows:
    """Which saved values a launch gives, and where the others are, by position."""

    given: tuple[int, ...]
    lent: Mapping[int, LentRow]

    def join(self, run: Runner, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All saved values."""
        remaining = iter(given)
        count = len(given) + len(self.lent)
        return [self.lent[k].find(run) if k in self.lent else next(remaining) for k in range(count)]


def find_lent(run: Runner, step: PreparedLaunch, form: TrainingForm) -> LentRows:
    """Which rows need not be copied."""
    lent = dict(_lent(run, step, form))
    return LentRows(tuple(k for k in range(len(form.saved)) if k not in lent), lent)


def _lent(run: Runner, step: PreparedLaunch, form: TrainingForm) -> Iterator[tuple[int, LentRow]]:
    for position in range(len(form.saved)):
        number = form.saved_operand(position)
        operand, spec = step.launch.operands[number], step.block.inputs[number]
        if not isinstance(operand, Span) or operand.length is not None:
            continue
        arena = run.arena(operand.arena)
        chunk = arena.chunk_of(operand)
        if chunk is None or not arena.is_given(chunk) or arena.device != torch.device(spec.device):
            continue
        first = operand.start - arena.starts[chunk]
        yield position, LentRow(operand.arena, chunk, first, first + operand.count)
