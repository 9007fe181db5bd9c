"""`auto`: what does not fit into the budget is swapped or made again, whichever costs less time.

Swapping a segment costs what its copies take beyond the launches beside which they run; making it
again costs what its forward launches took. Copies that were asked for earlier use up the time to
hide in, so with a slow link some segments are swapped and others made again. Without a budget
nothing is done until an allocation fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.bounded.predicting import BACKWARD, Saved
from penstock.autodiff.bounded.recomputing import Recomputing
from penstock.autodiff.bounded.segments import Segment
from penstock.autodiff.bounded.strategies import Swapping
from penstock.autodiff.joint import TrainingForm
from penstock.autodiff.page import Page
from penstock.plan.schedule import Picks, Span, slot_count
from penstock.run.memory.costs import Bandwidth, DeviceTimer, bandwidth_of
from penstock.run.memory.parcels import Parcel
from penstock.run.memory.policy import Policy, in_words
from penstock.run.prepared import Prepared, PreparedLaunch

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded

#: Segments that fill the budget, about.
SEGMENTS = 8

#: Copies hide beside the launches of so many segments: others have not begun, or are over.
HIDING = 2


@dataclass(slots=True)
class Credit:
    """Seconds of launches beside which copies can still run."""

    seconds: float = 0.0

    def earn(self, seconds: float) -> None:
        """Launches of so many seconds."""
        self.seconds = min(self.seconds + seconds, HIDING * seconds)

    def exposed(self, seconds: float) -> float:
        """What a copy of so many seconds takes beyond them."""
        return max(0.0, seconds - self.seconds)

    def spend(self, seconds: float) -> None:
        """A copy of so many seconds runs beside them."""
        self.seconds = max(0.0, self.seconds - seconds)


class Choosing(Recomputing):
    """Pages go to the store; a segment that has to leave it is swapped or made again."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.store.instead = self._instead
        self._segments: dict[Parcel, Segment] = {}
        #: Time to hide copies in, on the way out and on the way back.
        self._out, self._back = Credit(), Credit()
        self._bandwidth: Bandwidth | None = None
        #: Bytes of the rows that launches have read, as pages of rows would save them.
        self.row_bytes = 0
        self.device: torch.device | None = None
        #: Seconds that a GPU took for each byte saved, in the last segment that it has done.
        self._rate: float | None = None

    # ---- forward ---------------------------------------------------------------------------------

    def keep_page(self, run: Bounded, step: Prepared, page: Page, size: int) -> None:
        """Pages go to the store."""
        if page.saved:
            self.row_bytes += bytes_read(run, step, page, size)
            self.device = page.saved[0].device
            segment = self.of_page[page]
            if segment.timer is None and page.saved[0].is_cuda:
                segment.timer = DeviceTimer(page.saved[0].device)
            for parcel in self.take(run, step, page).parcels:
                self._segments[parcel] = segment

    def held_beside(self, segment: Segment) -> int:
        """Its rows: pages are in the store."""
        return segment.row_bytes

    def is_full(self, segment: Segment, more: int) -> bool:
        """Whether a segment is to be closed before a launch that saves so many bytes."""
        assert self.policy.budget is not None
        return segment.bytes * SEGMENTS > self.policy.budget

    def close(self, run: Bounded) -> None:
        """Put the rows of the last segment into the store."""
        if self.segments:
            segment = self.segments[-1]
            if segment.timer is not None:
                segment.timer.stop()
            seconds = self._seconds(segment)
            self._out.earn(seconds)
            self._back.earn(BACKWARD * seconds)
            self.ledger.clear()
            segment.is_closed = True
            self.store.beside = 0
            self._close_rows(run, segment)
            self.tops.append(segment)

    def _instead(self, parcel: Parcel) -> bool:
        """Drop the pages of the segment of a parcel, if making them again takes less time."""
        segment = self._segments.get(parcel)
        if segment is None or not segment.is_closed:
            return False
        if segment.is_recomputed is None:
            segment.is_recomputed = self._is_cheaper_again(segment, parcel)
            if not segment.is_recomputed:
                self._drop_rows(segment)
        if segment.is_recomputed:
            self._forget_held(segment)
        return segment.is_recomputed

    def _seconds(self, segment: Segment) -> float:
        """How long a segment ran; while its device is not done, as long as others of its size."""
        if segment.timer is not None:
            known = segment.timer.seconds()
            if known is not None:
                segment.seconds, segment.timer = known, None
                self._rate = known / max(segment.bytes, 1)
            elif self._rate is not None:
                return self._rate * segment.bytes
        return segment.seconds

    def _is_cheaper_again(self, segment: Segment, parcel: Parcel) -> bool:
        if self._bandwidth is None:
            self._bandwidth = bandwidth_of(parcel.device)
        out, back = self._bandwidth.seconds(segment.bytes, len(segment.saving))
        exposed = self._out.exposed(out) + self._back.exposed(back)
        if exposed > self._seconds(segment):
            return True
        self._out.spend(out)
        self._back.spend(back)
        return False

    def _forget_held(self, segment: Segment) -> None:
        for page in segment.saving:
            holding = self.pages.pop(page, None)
            if holding is not None:
                for parcel in holding.parcels:
                    self._segments.pop(parcel, None)
                self.holdings.drop(holding)

    # ---- backward --------------------------------------------------------------------------------

    def expect(self, pages: Sequence[Page]) -> None:
        """Pages in the store, and the rows of segments that run again."""
        order: dict[Parcel, None] = {}
        for page in pages:
            segment = self.of_page.get(page)
            holding = self.pages.get(page)
            if holding is None and segment is not None and segment.is_recomputed:
                holding = segment.rows
            if holding is not None:
                order.update(dict.fromkeys(holding.parcels))
        self.store.expect(list(order))

    def enter(self, run: Bounded, page: Page) -> None:
        """Fetch a page, or make its segment again."""
        if page in self.pages:
            if self.of_page.get(page) is not self.made_again:
                self.leave_segment()
            self.bring(page)
        else:
            super().enter(run, page)

    def leave(self, page: Page) -> None:
        """Give a page back that was fetched."""
        Swapping.leave(self, page)

    def _open_bytes(self) -> int:
        return 0

    @property
    def saved(self) -> Saved | None:
        """What the run has saved, for later ones; None where that is nothing."""
        pages = [page for segment in self.segments for page in segment.saving]
        if self.device is None:
            return None
        size = sum(segment.bytes for segment in self.segments)
        return Saved(size, self.row_bytes, len(pages), self.device)

    # ---- words -----------------------------------------------------------------------------------

    def explain(self) -> str:
        """What was chosen, and why."""
        by_choice: dict[bool | None, list[Segment]] = {None: [], False: [], True: []}
        for segment in self.segments:
            by_choice[segment.is_recomputed].append(segment)
        kept, swapped, again = by_choice[None], by_choice[False], by_choice[True]
        told = [
            f"{len(chosen)} {word} ({in_words(sum(each.bytes for each in chosen))})"
            for chosen, word in ((kept, "kept"), (swapped, "swapped"), (again, "to be run again"))
        ]
        text = f"Memory ({self.policy}): of {len(self.segments)} segments {', '.join(told)}."
        if self._bandwidth is None:
            return f"{text} All that backward needs fits into the budget."
        left = [*swapped, *again]
        size = sum(each.bytes for each in left)
        copied = sum(self._bandwidth.seconds(size, sum(len(each.saving) for each in left)))
        seconds = sum(self._seconds(each) for each in left)
        return (
            f"{text} A segment of {in_words(size / len(left))} takes "
            f"{1e3 * seconds / len(left):.3g} ms to run again, and {1e3 * copied / len(left):.3g} "
            f"ms to copy out and back ({self._bandwidth}), some of it beside launches."
        )


def bytes_read(run: Bounded, step: Prepared, page: Page, size: int) -> int:
    """Bytes of the rows that a launch has read, without those that follow each other in inputs;
    what it has saved, if it cannot save these instead.
    """
    assert isinstance(step, PreparedLaunch)
    if not isinstance(page.form, TrainingForm):
        return size
    read = 0
    for operand in step.launch.operands:
        if isinstance(operand, Span | Picks):
            arena = run.arenas[operand.arena]
            chunk = arena.chunk_of(operand)
            is_lent = isinstance(operand, Span) and chunk is not None and arena.is_given(chunk)
            if not is_lent and arena.chunks:
                rows = arena.chunks[0 if chunk is None else chunk]
                read += slot_count(operand) * rows.nbytes // max(len(rows), 1)
    return read


class Waiting(Swapping):
    """Pages go to a store without bounds; when an allocation fails, half of them leave."""

    def _budget(self, policy: Policy) -> int | None:
        return None

    def explain(self) -> str:
        """Whether anything had to be done."""
        if not self.store.sent:
            return "Memory (auto): no allocation failed, so all that backward needs was kept."
        return (
            f"Memory (auto): an allocation failed, and {self.store.sent} pages "
            f"({in_words(self.store.sent_bytes)}) were swapped out to make room."
        )


def strategy_for(policy: Policy) -> Swapping:
    """What becomes of pages under a policy."""
    if policy.kind == "swap":
        return Swapping(policy)
    if policy.kind == "recompute":
        return Recomputing(policy)
    return Waiting(policy) if policy.budget is None else Choosing(policy)
