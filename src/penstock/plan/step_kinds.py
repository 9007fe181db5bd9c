"""What makes recorded steps alike: steps of one kind run together in one launch.

Kinds are numbered process-wide by whoever records; a number never changes its meaning, so plans
may name kinds by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.plan.schedule import Kind, Shared


class Stored(NamedTuple):
    """How one value is stored."""

    #: Of the arena.
    kind: Kind
    #: How many consecutive slots it takes, or None for a value that is one slot.
    length: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """An operand: the next value of the record."""


@dataclass(frozen=True, slots=True)
class KeyOf:
    """An operand: the key of a random draw, counted from the first draw of the record."""

    draw: int


@dataclass(frozen=True, slots=True)
class StepKind:
    """A block and its operands, or an alias, or a copy."""

    name: str
    operands: tuple[Row | KeyOf | Shared, ...]
    results: tuple[Stored, ...]
    #: Its number among the blocks; -1 for aliases and copies.
    block: int = -1
    #: Of an alias: for each result its first element in operand 0, and its length or None.
    parts: tuple[tuple[int, int | None], ...] = ()
    #: Whether the only result is the elements of all operands, in order.
    is_copy: bool = False
