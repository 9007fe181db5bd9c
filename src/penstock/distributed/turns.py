"""What one rank does of a schedule, made ready: its own instructions, and its part of exchanges.

Turns refer to arenas by number, never to a run, so they serve every run that follows the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from penstock.plan.schedule import Copy
from penstock.run.prepared import Prepared
from penstock.run.slot_access import FetchTensor, Put


class Crossing(NamedTuple):
    """A copy from one rank to another."""

    source: int
    target: int
    copy: Copy


class Rows(NamedTuple):
    """Rows that travel: what the receiver must know of them."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    #: What they travel for.
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """An instruction of this rank."""

    step: Prepared


@dataclass(frozen=True, slots=True, eq=False)
class Cross:
    """Rows that go from one rank to another: `fetch` at the source, `put` at the target."""

    crossing: Crossing
    rows: Rows
    fetch: FetchTensor | None = None
    put: Put | None = None


class Spread(NamedTuple):
    """Rows of one rank that all get; `fetch` at the source."""

    source: int
    rows: Rows
    fetch: FetchTensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tell:
    """Values that steer, for the planners of all ranks."""

    parts: tuple[Spread, ...]


Turn: TypeAlias = Own | Cross | Tell
