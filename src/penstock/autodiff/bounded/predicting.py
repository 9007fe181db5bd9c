"""`auto` for a program that has run before: what its pages save, and whether they leave.

What one call has saved, and how long it took, is known to the next. A page either saves all that
its backward half reads, or only the rows that its launch has read: what is computed from them, such
as the gates of a cell, is then computed again as part of the backward half. Pages of either kind
are kept if they fit into the budget, and swapped otherwise; or segments run again. The way that is
predicted to take the least time is taken. Predictions may be wrong: the budget holds all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import thread_time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from penstock.autodiff.bounded.strategies import Swapping, shared_operands
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Entry
from penstock.run.memory.costs import Bandwidth, DeviceTimer, bandwidth_of
from penstock.run.memory.parcels import Extensions
from penstock.run.memory.policy import Policy, in_words
from penstock.run.memory.store import EARLY
from penstock.run.prepared import Prepared
from penstock.run.recording import building_time

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded

#: The backward half of a launch takes so many times as long as the forward one, about.
BACKWARD = 2.0

#: What it takes to compute again inside of backward halves, and by running segments again, in times
#: of the forward pass.
INSIDE, SEGMENTS = 0.4, 1.1


class Saved(NamedTuple):
    """Bytes and pages that calls of a program save."""

    everything: int
    rows: int
    pages: int
    device: torch.device


@dataclass(slots=True, eq=False)
class History:
    """What earlier calls of a program have saved, and how long their forward passes took."""

    saved: Saved
    watch: Stopwatch | None
    seconds: float = inf
    #: What ways have taken, where they are tried; made and looked at by `trying`.
    trials: Any = None

    def learn(self, size: int, *, saves_rows: bool) -> None:
        """A call has saved so many bytes; the other kind of page would have saved in proportion,
        and so would the fastest pass have taken.
        """
        known = self.saved.rows if saves_rows else self.saved.everything
        times = size / known if known else 1.0
        self.saved = self.saved._replace(
            everything=round(self.saved.everything * times),
            rows=round(self.saved.rows * times),
            pages=round(self.saved.pages * times),
        )
        if size:
            self.seconds *= times

    def look(self) -> bool:
        """Whether a time is known; of several passes the fastest counts: others have waited for
        copies.
        """
        seconds = None if self.watch is None else self.watch.seconds()
        if seconds is not None:
            self.seconds, self.watch = min(self.seconds, seconds), None
        return self.seconds < inf


class Stopwatch:
    """Times a forward pass: on a GPU without waiting for it, on a CPU in the time that the thread
    had the processor, so that other jobs do not count. Nothing is known of a pass in which
    something was built. Where launches wait for copies, what came before tells how long all of them
    would have taken: otherwise copies would seem to be hidden by the time that they take.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._began, self._built = thread_time(), building_time.seconds
        self._timer = None if device is None else DeviceTimer(device)
        self._host: float | None = None
        #: Bytes that were saved while the device was timed, and by the whole pass.
        self._timed, self._saved = 0, 0

    def leave_out_waiting(self, saved: int) -> None:
        """So much is saved, and from now on launches wait for copies."""
        if self._timer is not None and saved and not self._timed:
            self._timer.stop()
            self._timed = saved

    def stop(self, saved: int) -> None:
        """The pass is over, and has saved so many bytes."""
        if building_time.seconds == self._built:
            self._host = thread_time() - self._began
        if self._timer is not None and not self._timed:
            self._timer.stop()
        self._saved = saved

    def seconds(self) -> float | None:
        """How long it took; None while that is not known."""
        if self._timer is None or self._host is None:
            return self._host
        known = self._timer.seconds()
        times = self._saved / self._timed if self._timed else 1.0
        return None if known is None else max(times * known, self._host)


class Way(NamedTuple):
    """One way to stay inside the budget."""

    name: str
    saves_rows: bool
    is_kept: bool
    #: Predicted, beyond those of keeping everything.
    seconds: float


def find_ways(history: History, budget: int, bandwidth: Bandwidth) -> list[Way]:
    """All ways, the one to take first."""
    saved, forward = history.saved, history.seconds
    again = INSIDE * forward

    def moving(size: int) -> float:
        """What copies of all that does not fit take: the host to ask for them, and the copies
        beyond the launches beside them.
        """
        more = max(0, size - budget)
        copies = -(-saved.pages * more // max(size, 1))
        out, back = bandwidth.seconds(more, 0)
        exposed = max(0.0, out - forward) + max(0.0, back - BACKWARD * forward)
        return exposed + 2 * copies * bandwidth.start

    ways = [
        Way("all is swapped", False, False, moving(saved.everything)),
        Way("rows are swapped", True, False, again + moving(saved.rows)),
        Way("segments run again", False, False, SEGMENTS * forward),
    ]
    if saved.rows <= budget:
        ways.insert(0, Way("rows are kept", True, True, again))
    if saved.everything <= budget:
        ways.insert(0, Way("all is kept", False, True, 0.0))
    return sorted(ways, key=lambda way: way.seconds)


class Predicted(Swapping):
    """Pages go to the store, as an earlier call suggests."""

    def __init__(self, policy: Policy, history: History, ways: list[Way], reason: str = "") -> None:
        super().__init__(policy)
        #: The reason says why the first way is taken, beyond what is predicted of it.
        self.history, self.ways, self.reason = history, ways, reason
        #: Sending early is for those who must send.
        self.store.early = 1.0 if self.way.is_kept else EARLY

    @property
    def share(self) -> int | None:
        """Where all pages are to be kept they may be as large as the budget."""
        return self.policy.budget if self.way.is_kept else super().share

    @property
    def way(self) -> Way:
        """The way that is taken."""
        return self.ways[0]

    def fits(self, size: int | None) -> bool:
        """Whether pages of so many bytes, if that is known, may all be kept."""
        assert self.policy.budget is not None
        return size is not None and size <= self.policy.budget and self.way.is_kept

    def fitting(self) -> Fitting:
        """The same where all pages are known to fit."""
        return Fitting(self.policy, self.history, self.ways, self.reason)

    def explain(self) -> str:
        """What was chosen, and why."""
        again = " and the rest is computed again in backward halves" if self.way.saves_rows else ""
        chosen = f"Memory ({self.policy}): {self.way.name}{again}."
        return f"{chosen} {told(self.history, self.ways)}{self.reason}"


def told(history: History, ways: Sequence[Way]) -> str:
    """What is known of ways."""
    saved = history.saved
    others = ", ".join(f"{way.name} {1e3 * way.seconds:.3g} ms" for way in ways)
    return (
        f"An earlier call needed {in_words(saved.everything)} for all that backward reads, "
        f"{in_words(saved.rows)} for the rows that launches read. Predicted beyond keeping all: "
        f"{others} ({bandwidth_of(saved.device)}; forward {1e3 * history.seconds:.3g} ms)."
    )


class Fitting(Predicted):
    """Pages stay with the tape: all of them are known to fit. Where an allocation fails there is
    less memory than the budget says, and they go to the store after all.
    """

    def __init__(self, policy: Policy, history: History, ways: list[Way], reason: str = "") -> None:
        super().__init__(policy, history, ways, reason)
        #: Whether an allocation has failed.
        self.is_short = False

    def after(self, run: Bounded, step: Prepared, entry: Entry, seconds: float) -> None:
        """Nothing has to be done, as long as there is memory."""
        if self.is_short:
            super().after(run, step, entry, seconds)

    def relieve(self, run: Bounded) -> int:
        """Let half of all pages leave, of which the store has had none so far."""
        if not self.is_short:
            self.is_short = True
            for page in run.tape.entries:
                if isinstance(page, Page) and page.saved and not page.is_lasting:
                    self._take_as_it_is(run, page)
        return super().relieve(run)

    def _take_as_it_is(self, run: Bounded, page: Page) -> None:
        """Put a page into the store, unless parts of it would have to be copied for that."""
        lent, shared = self.lent(run), shared_operands(run, page.launch)
        if all(place in lent or place in shared for place in Extensions(page.saved).sparse):
            self.take_page(page, lent, shared)

    def finish(self, run: Bounded) -> None:
        """Where inputs are is known as long as the run has arenas."""
        self.lent(run)

    def explain(self) -> str:
        """What was chosen, and whether it could be done."""
        if not self.is_short:
            return super().explain()
        moved = f"{self.store.sent} pages ({in_words(self.store.sent_bytes)})"
        return (
            f"{super().explain()} An allocation failed, and {moved} were swapped out to make room."
        )
