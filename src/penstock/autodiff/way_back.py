"""The way of a backward pass, found by one and gone again by others.

Which rows take part, which halves run for them, and where gradients are written or added: all that
follows from a plan and from the outputs that have cotangents. A way holds index tensors, never
values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.additions import Addition, Outline
from penstock.autodiff.fused_half import FusedHalf
from penstock.autodiff.gradients import Accumulate, Gather
from penstock.autodiff.joint import Pattern
from penstock.autodiff.straight_way import StraightenedWay
from penstock.plan.schedule import Integers

if TYPE_CHECKING:
    from penstock.autodiff.reverse import Reversal

#: Prepares slots; finds cotangents.
Fill: TypeAlias = "Callable[[Reversal], object]"
Fetch: TypeAlias = "Callable[[Reversal], torch.Tensor]"


@dataclass(slots=True, eq=False)
class Half:
    """A backward half of some rows (None: all) of a launch: those in which the same results have
    cotangents.
    """

    pattern: Pattern
    index: Integers | None
    #: Puts zeros into slots of rows that lack a cotangent and go with the others.
    zeros: tuple[Fill, ...]
    #: Whether it reads anything that can be used up.
    needs_saved: bool
    #: What to do with the results; None until that is known.
    additions: tuple[Addition, ...] | None = None
    #: What it has in common with others; None where it cannot be compiled.
    outline: Outline | None = None
    #: How to find the cotangents without compiled code, made ready when that is first asked for.
    cotangents: tuple[Fetch, ...] | None = None
    #: The half as it may be run compiled, made when it is worth it: None, where it cannot be.
    fused: FusedHalf | None = None
    is_bound: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CopyBack:
    """The gradients of copies go to what was copied."""

    target: int
    gather: Gather
    source: int
    shape: tuple[int, ...]
    add: Accumulate

    def run(self, reversal: Reversal) -> None:
        """Move them."""
        self.give(reversal, self.take(reversal))

    def take(self, reversal: Reversal) -> torch.Tensor:
        """The gradients of the copies."""
        return self.gather(reversal.arena(self.target)).clone()

    def give(self, reversal: Reversal, gradients: torch.Tensor) -> None:
        """Add them to those of what was copied."""
        self.add(reversal.arena(self.source), gradients.reshape(self.shape))


class Move(Protocol):
    """Gradients go from slots to others."""

    def run(self, reversal: Reversal) -> None:
        """Move them."""


@dataclass(frozen=True, slots=True, eq=False)
class WayBack:
    """What to do for each entry of a tape, the last first, and which slots have gradients then."""

    steps: tuple[tuple[Half, ...] | Move, ...]
    present: Mapping[int, npt.NDArray[np.bool_]]
    #: The same with compiled halves in a row.
    straight: StraightenedWay = field(default_factory=StraightenedWay)
