"""What the planner knows of the padded form of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.plan.schedule import Integers


@dataclass(frozen=True, slots=True)
class Padding:
    """How rows of different sizes run together."""

    #: The number of the padded form among the blocks. It takes the operands of the block, and
    #: behind them for each symbol that is not tied the length that each row has of its own.
    block: int
    #: For each symbol the operands that have it: sequences, and sizes.
    operands: Mapping[str, tuple[int, ...]]
    #: Symbols whose size is always that of another one and a number, 0 or less.
    ties: Mapping[str, tuple[str, int]]
    #: For each symbol that is not tied the least size that can be padded.
    least: Mapping[str, int]
    #: From the rows' sizes, of symbols that are not tied, to the lengths of each result; None for
    #: one that is no sequence.
    result_lengths: Callable[[Mapping[str, Integers]], Sequence[Integers | None]]
