"""What one rank does of a schedule, made ready: its own instructions, and its part of exchanges.

Turns refer to arenas by number, never to a run, so they serve every run that follows the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from penstock.plan.schedule import Copy, Instruction, Picks, Span
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


@dataclass(slots=True, eq=False)
class Own:
    """An instruction of this rank."""

    #: The number of the device that carries it out.
    device: int
    item: Instruction
    #: None until it is carried out for the first time; launches are made ready at once.
    step: Prepared | None = None
    #: The ends of earlier iterations that it waits for, where devices have queues.
    marks: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Hand:
    """Rows that go from one device of this rank to another."""

    source: int
    target: int
    copy: Copy
    fetch: FetchTensor | None = None


@dataclass(slots=True, eq=False)
class Cross:
    """Rows that go from one rank to another."""

    crossing: Crossing
    rows: Rows
    #: At the source and at the target, made ready when first needed.
    fetch: FetchTensor | None = None
    put: Put | None = None


@dataclass(slots=True, eq=False)
class Spread:
    """Rows of one rank that all get."""

    source: int
    slots: Span | Picks
    rows: Rows
    #: At the source, made ready when first needed.
    fetch: FetchTensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tell:
    """Values that steer, for the planners of all ranks."""

    parts: tuple[Spread, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """The end of an iteration, where devices have queues."""

    number: int


Turn: TypeAlias = Own | Hand | Cross | Tell | Marked
