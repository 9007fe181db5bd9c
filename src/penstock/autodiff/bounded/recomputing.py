"""`recompute`: pages are dropped, and made again in backward from rows that are kept.

A segment of launches is closed when its pages take as much as all rows that are kept: both then
grow with the square root of the length of a run. Under a budget each has half of it, and where rows
take more, segments are folded: two become one that starts from the rows of the first. In backward
the first half of such a segment runs to make the rows of the second, and so on inside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.autodiff.bounded.dividing import page_bytes
from penstock.autodiff.bounded.folding import (
    MOST_LEVELS,
    Frame,
    Values,
    fold_last,
    fold_pairs,
)
from penstock.autodiff.bounded.ledger import Ledger, Rows, bytes_to_keep
from penstock.autodiff.bounded.segments import Segment, SegmentStep, rows_again
from penstock.autodiff.bounded.strategies import Swapping, bytes_of
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Entry
from penstock.plan.schedule import Picks, Span
from penstock.run.memory.policy import Policy, in_words
from penstock.run.memory.room import with_room
from penstock.run.prepared import Prepared

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded

#: A segment saves at least this many bytes, where rows to start from take less.
LEAST_SEGMENT = 1 << 16


class Recomputing(Swapping):
    """Pages are dropped when their segment is closed, and made again from rows. Those made again
    are of one segment at a time.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.segments: list[Segment] = []
        self.of_page: dict[Page, Segment] = {}
        self.ledger = Ledger()
        #: The segment whose pages have been made again, and the way down to it.
        self.made_again: Segment | None = None
        self.frames: list[Frame] = []
        #: How often segments have to be folded until no more of them may be.
        self.level = 0
        #: Bytes of the rows that closed segments start from.
        self.kept_bytes = 0
        self._rows: list[Rows] = []
        #: The segments whose rows are kept: others are inside of them.
        self.tops: list[Segment] = []

    def _budget(self, policy: Policy) -> int | None:
        return policy.budget

    # ---- forward ---------------------------------------------------------------------------------

    def before(self, run: Bounded, step: Prepared) -> None:
        """Keep the rows that a step reads and that its segment has not made."""
        more = page_bytes(run, step)
        if not self.segments or self.is_full(self.segments[-1], more):
            self.close(run)
            self.segments.append(Segment(len(run.tape.entries)))
        segment = self.segments[-1]
        if self.policy.budget is not None:
            self.store.make_room(more + bytes_to_keep(run, step))
        with_room(partial(self._keep_missing, run, step, segment), run.relieve)
        self.store.beside = self.held_beside(segment)

    def _keep_missing(self, run: Bounded, step: Prepared, segment: Segment) -> None:
        for rows, values in self.ledger.missing(run, step):
            self._rows.append(rows)
            segment.needs.append(rows)
            segment.values.append(values)
            segment.row_bytes += rows.bytes

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

    def received(self, run: Bounded, target: Span | Picks) -> None:
        """What came from elsewhere does not come again: whoever reads it keeps it."""
        self.ledger.received(run, target)

    def keep_page(self, run: Bounded, step: Prepared, page: Page, size: int) -> None:
        """The pages of the segment at work stay as they are."""
        self.store.beside = self.held_beside(self.segments[-1])
        self.store.make_room()

    def held_beside(self, segment: Segment) -> int:
        """Bytes that the segment at work holds outside of the store."""
        return segment.bytes + segment.row_bytes

    def is_full(self, segment: Segment, more: int) -> bool:
        """Whether a segment is to be closed before a launch that saves so many bytes."""
        least = max(self.kept_bytes, LEAST_SEGMENT)
        if self.policy.budget is None:
            return segment.bytes > least
        most = self.policy.budget // 2
        would_be = segment.bytes + more if segment.bytes else 0
        return segment.bytes > min(least, most) or would_be > most

    def close(self, run: Bounded) -> None:
        """Put the rows of the last segment into the store, and drop its pages."""
        if not self.segments:
            return
        segment = self.segments[-1]
        segment.known = self.ledger.hand_over()
        segment.is_closed = True
        self.store.beside -= segment.row_bytes
        self._close_rows(run, segment)
        self.forget(segment)
        self.store.beside = 0
        if segment.rows is not None:
            self.tops.append(segment)
            self._fold()

    def _fold(self) -> None:
        """Make one of neighbours that were folded equally often, as far as rows take too much."""
        while self.policy.budget is not None and len(self.tops) > 1:
            if not fold_last(self.tops, self.holdings, self.level):
                if self._rows_kept() <= self.policy.budget // 2 or self.level == MOST_LEVELS:
                    break
                self.level += 1
                if not fold_pairs(self.tops, self.holdings, self.level):
                    self.level -= 1  # what is too much leaves
                    break
        self.kept_bytes = self._rows_kept()

    def _rows_kept(self) -> int:
        return sum(top.rows.size for top in self.tops if top.rows is not None)

    def _close_rows(self, run: Bounded, segment: Segment) -> None:
        values, segment.values = segment.values, []
        if not segment.saving:
            return
        held = {
            arena.chunks[0].untyped_storage().data_ptr(): arena.chunks[0]
            for arena in run.own_arenas
            if arena.is_held and arena.chunks
        }
        segment.rows = self.holdings.hold(values, self.lent(run), held, rows_again)
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
        self.store.beside = self._open_bytes()
        self.ledger.clear()

    def cut(self, run: Bounded, entries: Sequence[Entry]) -> None:
        """Undo steps; what they wrote is not known any more."""
        super().cut(run, entries)
        gone = set(map(id, entries))
        end = len(run.tape.entries)
        for segment in self.segments:
            if segment.start + len(segment.steps) > end:
                segment.forget_known()
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
        leaves = (self.of_page[page] for page in pages if page in self.of_page)
        segments = dict.fromkeys(leaf.top for leaf in leaves)
        held = (each.rows for each in segments if each.is_recomputed and each.rows is not None)
        self.store.expect([parcel for holding in held for parcel in holding.parcels])

    def enter(self, run: Bounded, page: Page) -> None:
        """Make the pages of its segment again, if that is not done yet."""
        segment = self.of_page.get(page)
        if segment is None or not segment.is_recomputed or segment is self.made_again:
            return
        if segment.is_consumed:
            return  # its rows may be gone, as the page will tell
        self.leave_segment(segment)
        self._make_room_beside(segment)  # before rows come, and others ahead of them
        values = self._go_down(run, segment)
        if any(frame.more for frame in self.frames):
            self._make_room_beside(segment)
        run.run_again([segment], values, keeps_pages=True)

    def enter_again(self, run: Bounded, page: Page) -> None:
        """Begin anew with the segment of a page, which was made in part."""
        self.leave_segment()
        super().enter_again(run, page)

    def _go_down(self, run: Bounded, leaf: Segment) -> Values:
        """The values of the rows that a segment starts from: those kept, or made on the way down
        from the segment that it was folded into.
        """
        if not self.frames:
            top = leaf.top
            assert top.rows is not None
            fetched = self.holdings.fetch(top.rows)
            self.frames = [Frame(top, dict(zip(map(id, top.needs), fetched, strict=True)))]
        while self.frames[-1].segment is not leaf:
            self.frames.append(self.frames[-1].below(run, leaf))
        return self.frames[-1].values

    def _make_room_beside(self, segment: Segment) -> None:
        """Pages outside of the store share its budget: those that are made again, and those of the
        last segment, which was never closed.
        """
        below = sum(frame.more for frame in self.frames)
        beside = segment.bytes + below + self._open_bytes()
        self.store.make_room(beside - self.store.beside)
        self.store.beside = beside

    def _open_bytes(self) -> int:
        """Bytes of the pages of a segment that was never closed, outside of the store."""
        last = self.segments[-1] if self.segments else None
        return 0 if last is None or last.is_closed or last.is_consumed else last.bytes

    def is_away(self, page: Page) -> bool:
        """Whether the values of a page have yet to come."""
        segment = self.of_page.get(page)
        is_made = segment is None or not segment.is_recomputed or segment is self.made_again
        return not is_made or super().is_away(page)

    def leave(self, page: Page) -> None:
        """Nothing: the pages of a segment go together."""

    def leave_segment(self, following: Segment | None = None) -> None:
        """Drop what was made again, and all that another segment does not start from. Only then is
        it another's turn: where this is interrupted, it is done again when the pass has failed.
        """
        if self.made_again is not None:
            self._leave(self.made_again, following)
        self.made_again = following

    def _leave(self, segment: Segment, following: Segment | None) -> None:
        self.forget(segment)
        self.store.beside = self._open_bytes()
        while self.frames and (following is None or not self.frames[-1].segment.has(following)):
            self.frames.pop()
        top = segment.top
        if self.frames:
            return
        if top.is_consumed:
            self._drop_rows(top)
        elif top.rows is not None:
            self.holdings.leave(top.rows)

    def _drop_rows(self, segment: Segment) -> None:
        if segment.rows is not None:
            self.holdings.drop(segment.rows)
            segment.rows = None

    def explain(self) -> str:
        """What was done, in words."""
        again = [segment for segment in self.segments if segment.is_recomputed]
        size = in_words(sum(segment.bytes for segment in again))
        level = max((top.level for top in self.tops), default=0)
        folded = f", folded {level} times" if level else ""
        return (
            f"Memory ({self.policy}): {len(again)} of {len(self.segments)} segments ({size}) are "
            f"to be run again, from rows of {in_words(self.kept_bytes)}{folded}."
        )

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        self.leave_segment()
        for segment in self.tops:
            if segment.is_consumed:
                self._drop_rows(segment)
        super().rest()
