"""Segments of a run: launches that can be run again from the rows that they start from.

A segment reads rows that it has not made itself. These are kept, each from just before the step
that first reads it, so that slots may be used for other values meanwhile. Inputs of the run stay
where they are. A step that cannot be run twice is left out: what it made counts as not made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from penstock.autodiff.bounded.ledger import Known, Rows, nothing_known
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Entry
from penstock.run.memory.costs import DeviceTimer
from penstock.run.memory.holdings import Holding
from penstock.run.prepared import Prepared, is_repeatable


class SegmentStep(NamedTuple):
    """A step, what it has left on the tape, and the rows to put back before it runs again."""

    step: Prepared
    entry: Entry
    rows: tuple[Rows, ...]

    @property
    def is_repeatable(self) -> bool:
        """Whether it may run again."""
        return is_repeatable(self.step)

    @property
    def page(self) -> Page | None:
        """Its page, if it has saved something that can be made again."""
        entry = self.entry
        return entry if isinstance(entry, Page) and entry.results and self.is_repeatable else None


@dataclass(slots=True, eq=False)
class Segment:
    """Steps that follow each other on the tape."""

    #: The place of its first entry on the tape.
    start: int
    steps: list[SegmentStep] = field(default_factory=list)
    #: The rows that it starts from, in the order of its steps, and until it is closed their values.
    needs: list[Rows] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    #: The same, in the store, once it is closed.
    rows: Holding | None = None
    #: Bytes that its pages save.
    bytes: int = 0
    #: Bytes of the rows that it starts from.
    row_bytes: int = 0
    #: How long it ran, in seconds by the host's clock, or by that of a GPU.
    seconds: float = 0.0
    timer: DeviceTimer | None = None
    #: Those of its pages that save something, and can be made again.
    saving: list[Page] = field(default_factory=list)
    is_closed: bool = False
    #: Whether its pages are dropped and made again when backward comes to them; None: undecided.
    is_recomputed: bool | None = None
    #: What running it makes, or has of its own rows, once it is closed.
    known: Known = field(default_factory=nothing_known)
    #: The two that it was folded of, and what it was folded into.
    halves: tuple[Segment, Segment] | None = None
    parent: Segment | None = None
    #: How often it was folded.
    level: int = 0
    #: Whether folding it into the one before it would save too little.
    is_apart: bool = False

    @property
    def leaves(self) -> Iterator[Segment]:
        """The segments inside that were not folded, in order."""
        if self.halves is None:
            yield self
        else:
            for half in self.halves:
                yield from half.leaves

    @property
    def top(self) -> Segment:
        """The largest segment that it is part of."""
        found = self
        while found.parent is not None:
            found = found.parent
        return found

    def has(self, leaf: Segment) -> bool:
        """Whether another is part of it."""
        while leaf is not self and leaf.parent is not None:
            leaf = leaf.parent
        return leaf is self

    def makes(self, rows: Rows) -> bool:
        """Whether rows are there once it has run."""
        return self.known.has(rows)

    def forget_known(self) -> None:
        """Some of its steps were undone: nothing is known after it."""
        found: Segment | None = self
        while found is not None:
            found.known = nothing_known()
            found = found.parent

    @property
    def is_repeatable(self) -> bool:
        """Whether all of it may run again."""
        return self.halves is not None or all(noted.is_repeatable for noted in self.steps)

    @property
    def is_consumed(self) -> bool:
        """Whether no page will be needed again."""
        return all(page.is_used_up for leaf in self.leaves for page in leaf.saving)


def rows_again() -> str:
    """What the rows are that segments start from, for errors."""
    return "rows from which launches run again"
