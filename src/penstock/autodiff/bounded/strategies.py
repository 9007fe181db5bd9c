"""What becomes of the pages of a run: swapped, made again, or whichever is cheaper.

A strategy takes over what pages have saved: between launches a page holds nothing itself. Before a
backward half runs its page is entered, and holds its values until it is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.bounded.segments import (
    Ledger,
    Rows,
    Segment,
    SegmentStep,
    lent_ranges,
)
from penstock.autodiff.tape import Entry, Page
from penstock.autodiff.versions import version_of
from penstock.plan.schedule import Picks, Span
from penstock.run.memory.holdings import Holding, Holdings
from penstock.run.memory.parcels import storage_sizes
from penstock.run.memory.policy import Policy, in_words
from penstock.run.memory.store import IN_FLIGHT, Store
from penstock.run.prepared import Prepared, PreparedLaunch

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded

#: A segment saves at least this many bytes, where rows to start from take less.
LEAST_SEGMENT = 1 << 16


class Swapping:
    """Pages go to the store, which lets the oldest leave."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.store = Store(self._budget(policy))
        self.holdings = Holdings(self.store)
        self.pages: dict[Page, Holding] = {}
        self._lent: frozenset[int] = frozenset()
        self._chunks = -1

    def _budget(self, policy: Policy) -> int | None:
        return IN_FLIGHT if policy.budget is None else policy.budget

    # ---- forward ---------------------------------------------------------------------------------

    def before(self, run: Bounded, step: Prepared) -> None:
        """A step is about to run."""

    def after(self, run: Bounded, step: Prepared, entry: Entry, seconds: float) -> None:
        """A step has run, and has left an entry on the tape."""
        if isinstance(entry, Page) and entry.saved:
            self.take(run, step, entry)

    def take(self, run: Bounded, step: Prepared, page: Page) -> Holding:
        """Take over what a page has saved."""
        assert isinstance(step, PreparedLaunch)
        shared = shared_operands(run, step)
        saved, page.saved = page.saved, []
        made = self.pages[page] = self.holdings.hold(saved, self.lent(run), shared)
        return made

    def lent(self, run: Bounded) -> frozenset[int]:
        """Where the memory of inputs begins."""
        chunks = sum(len(arena.chunks) for arena in run.arenas)
        if chunks != self._chunks:
            self._chunks = chunks
            self._lent = frozenset(
                arena.chunks[arena.starts.index(start)].untyped_storage().data_ptr()
                for arena in run.arenas
                for start, _ in lent_ranges(arena)
            )
        return self._lent

    def cut(self, run: Bounded, entries: Sequence[Entry]) -> None:
        """Steps that failed later on are undone: these entries are no part of the tape."""
        for entry in entries:
            if isinstance(entry, Page) and entry in self.pages:
                self.holdings.drop(self.pages.pop(entry))

    def finish(self, run: Bounded) -> None:
        """The forward run is over."""

    # ---- backward --------------------------------------------------------------------------------

    def expect(self, pages: Sequence[Page]) -> None:
        """These pages will be entered, in this order."""
        held = (self.pages[page] for page in pages if page in self.pages)
        self.store.expect([parcel for holding in held for parcel in holding.parcels])

    def enter(self, run: Bounded, page: Page) -> None:
        """Give a page its values."""
        holding = self.pages.get(page)
        if holding is not None:
            was_away = not holding.is_here
            page.saved = list(self.holdings.fetch(holding))
            if was_away:
                page.versions = tuple(
                    page.versions[k] if k in holding.lent else version_of(values)
                    for k, values in enumerate(page.saved)
                )

    def is_away(self, page: Page) -> bool:
        """Whether the values of a page have yet to come."""
        return page in self.pages and not page.saved

    def leave(self, page: Page) -> None:
        """Take them again, or drop them if no row will need them."""
        holding = self.pages.get(page)
        if holding is None:
            return
        page.saved = []
        if page.is_used_up:
            del self.pages[page]
            self.holdings.drop(holding)
        else:
            self.holdings.leave(holding)

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        for page in [page for page in self.pages if page.is_used_up]:
            page.saved = []
            self.holdings.drop(self.pages.pop(page))
        self.store.rest()

    def explain(self) -> str:
        """What was done, in words."""
        sent = f"{self.store.sent} copies ({in_words(self.store.sent_bytes)})"
        return f"Memory ({self.policy}): {sent} of saved values left memory until backward."


class Recomputing(Swapping):
    """Pages are dropped when their segment is closed, and made again from the rows that it starts
    from. A segment is closed when its pages take as much as all rows that are kept: both then grow
    with the square root of the length of the run.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.segments: list[Segment] = []
        self.of_page: dict[Page, Segment] = {}
        self.ledger = Ledger()
        #: The segment whose pages have been made again.
        self.made_again: Segment | None = None
        #: Bytes of the rows that closed segments start from.
        self.kept_bytes = 0
        self._rows: list[Rows] = []

    def _budget(self, policy: Policy) -> int | None:
        return policy.budget

    # ---- forward ---------------------------------------------------------------------------------

    def before(self, run: Bounded, step: Prepared) -> None:
        """Keep the rows that a step reads and that its segment has not made."""
        if not self.segments or self.is_full(self.segments[-1]):
            self.close(run)
            self.segments.append(Segment(len(run.tape.entries)))
        for rows, values in self.ledger.missing(run, step):
            self._rows.append(rows)
            self.segments[-1].values.append(values)

    def after(self, run: Bounded, step: Prepared, entry: Entry, seconds: float) -> None:
        """Note the step."""
        segment = self.segments[-1]
        self.ledger.written(run, step)
        noted = SegmentStep(step, entry, tuple(self._rows))
        self._rows = []
        segment.steps.append(noted)
        segment.seconds += seconds
        if noted.page is not None and (entry.saved or entry.graph):  # type: ignore[union-attr]
            segment.saving.append(noted.page)
            self.of_page[noted.page] = segment
            size = bytes_of(noted.page.saved, self.lent(run))
            segment.bytes += size
            self.keep_page(run, step, noted.page, size)

    def keep_page(self, run: Bounded, step: Prepared, page: Page, size: int) -> None:
        """The pages of the segment at work stay as they are."""
        self.store.beside = self.segments[-1].bytes
        self.store.make_room()

    def is_full(self, segment: Segment) -> bool:
        """Whether a segment is to be closed."""
        least = max(self.kept_bytes, LEAST_SEGMENT)
        if self.policy.budget is not None:
            least = min(least, self.policy.budget // 2)
        return segment.bytes > least

    def close(self, run: Bounded) -> None:
        """Put the rows of the last segment into the store, and drop its pages."""
        if not self.segments:
            return
        segment = self.segments[-1]
        self.ledger.clear()
        segment.is_closed = True
        self._close_rows(run, segment)
        self.forget(segment)

    def _close_rows(self, run: Bounded, segment: Segment) -> None:
        values, segment.values = segment.values, []
        if not segment.saving:
            return
        held = {
            arena.chunks[0].untyped_storage().data_ptr(): arena.chunks[0]
            for arena in run.arenas
            if arena.is_held and arena.chunks
        }
        segment.rows = self.holdings.hold(values, self.lent(run), held)
        self.kept_bytes += segment.rows.size

    def forget(self, segment: Segment) -> None:
        """Drop the pages of a segment: they can be made again."""
        segment.is_recomputed = True
        for page in segment.saving:
            page.saved, page.graph = [], None

    def finish(self, run: Bounded) -> None:
        """The last segment keeps its pages, which are wanted first."""
        if self.segments:
            self.segments[-1].values = []
        self.ledger.clear()

    def cut(self, run: Bounded, entries: Sequence[Entry]) -> None:
        """Undo steps; what they wrote is not known any more."""
        super().cut(run, entries)
        gone = set(map(id, entries))
        end = len(run.tape.entries)
        for segment in self.segments:
            del segment.steps[max(end - segment.start, 0) :]
            segment.saving = [page for page in segment.saving if id(page) not in gone]
        self._rows = []
        for entry in entries:
            self.of_page.pop(entry, None)  # type: ignore[arg-type]
        self.ledger.clear()
        self.close(run)
        self.segments.append(Segment(end))

    # ---- backward --------------------------------------------------------------------------------

    def expect(self, pages: Sequence[Page]) -> None:
        """The rows of their segments will be wanted."""
        segments = dict.fromkeys(self.of_page[page] for page in pages if page in self.of_page)
        held = (each.rows for each in segments if each.is_recomputed and each.rows is not None)
        self.store.expect([parcel for holding in held for parcel in holding.parcels])

    def enter(self, run: Bounded, page: Page) -> None:
        """Make the pages of its segment again, if that is not done yet."""
        segment = self.of_page.get(page)
        if segment is None or not segment.is_recomputed or segment is self.made_again:
            return
        self.leave_segment()
        if segment.rows is None:
            return  # all of it is used up, as the page will tell
        self.made_again = segment
        self._make_room_beside(segment)
        run.run_again(segment, self.holdings.fetch(segment.rows))

    def _make_room_beside(self, segment: Segment) -> None:
        """Pages outside of the store share its budget: those that are made again, and those of the
        last segment, which was never closed.
        """
        last = self.segments[-1]
        is_there = not last.is_closed and not last.is_consumed
        self.store.beside = segment.bytes + (last.bytes if is_there else 0)
        self.store.make_room()

    def is_away(self, page: Page) -> bool:
        """Whether the values of a page have yet to come."""
        segment = self.of_page.get(page)
        is_made = segment is None or not segment.is_recomputed or segment is self.made_again
        return not is_made or super().is_away(page)

    def leave(self, page: Page) -> None:
        """Nothing: the pages of a segment go together."""

    def leave_segment(self) -> None:
        """Drop what was made again."""
        segment, self.made_again = self.made_again, None
        if segment is None:
            return
        self.forget(segment)
        if segment.is_consumed:
            self._drop_rows(segment)
        elif segment.rows is not None:
            self.holdings.leave(segment.rows)

    def _drop_rows(self, segment: Segment) -> None:
        if segment.rows is not None:
            self.holdings.drop(segment.rows)
            segment.rows = None

    def explain(self) -> str:
        """What was done, in words."""
        again = [segment for segment in self.segments if segment.is_recomputed]
        size = in_words(sum(segment.bytes for segment in again))
        return (
            f"Memory ({self.policy}): {len(again)} of {len(self.segments)} segments ({size}) are "
            f"to be run again, from rows of {in_words(self.kept_bytes)}."
        )

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        self.leave_segment()
        for segment in self.segments:
            if segment.is_consumed:
                self._drop_rows(segment)
        super().rest()


def bytes_of(tensors: Sequence[torch.Tensor], lent: frozenset[int]) -> int:
    """Bytes that tensors need, without memory that stays."""
    return sum(size for place, size in storage_sizes(tensors).items() if place not in lent)


def shared_operands(run: Bounded, step: PreparedLaunch) -> dict[int, torch.Tensor]:
    """Tensors that a launch has read as a whole, which others may read too."""
    if not any(arena.is_held for arena in run.arenas):
        return {}
    made = {target.arena for target in step.launch.targets}
    numbers = {
        operand.arena
        for operand in step.launch.operands
        if isinstance(operand, Span | Picks) and operand.arena not in made
    }
    arenas = (run.arenas[number] for number in numbers)
    chunks = (arena.chunks[0] for arena in arenas if arena.is_held and arena.chunks)
    return {chunk.untyped_storage().data_ptr(): chunk for chunk in chunks}
