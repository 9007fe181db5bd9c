"""What becomes of the pages of a run: they are swapped. Other strategies start from here.

A strategy takes over what pages have saved: between launches a page holds nothing itself. Before a
backward half runs its page is entered, and holds its values until it is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from penstock.autodiff.bounded.dividing import page_bytes
from penstock.autodiff.bounded.ledger import lent_ranges
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Entry
from penstock.autodiff.versions import version_of
from penstock.plan.schedule import Launch, Picks, Span
from penstock.run.memory.holdings import Holding, Holdings
from penstock.run.memory.parcels import storage_sizes
from penstock.run.memory.policy import Policy, in_words
from penstock.run.memory.store import IN_FLIGHT, Store
from penstock.run.prepared import Prepared

if TYPE_CHECKING:
    from penstock.autodiff.bounded.runs import Bounded


#: A page takes at most so large a part of the budget, where its launch can be divided: one is at
#: work, others are on their way.
PARTS = 2


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

    @property
    def share(self) -> int | None:
        """Bytes that one page may take; None where nothing is divided."""
        return None if self.policy.budget is None else self.policy.budget // PARTS

    def before(self, run: Bounded, step: Prepared) -> None:
        """A step is about to run."""
        self.store.make_room(page_bytes(run, step))

    def after(self, run: Bounded, step: Prepared, entry: Entry, seconds: float) -> None:
        """A step has run, and has left an entry on the tape."""
        if isinstance(entry, Page) and entry.saved:
            self.take(run, step, entry)

    def received(self, run: Bounded, target: Span | Picks) -> None:
        """Slots have got values from another device or process."""

    def take(self, run: Bounded, step: Prepared, page: Page) -> Holding:
        """Take over what a page has saved."""
        return self.take_page(page, self.lent(run), shared_operands(run, page.launch))

    def take_page(
        self, page: Page, lent: frozenset[int], shared: Mapping[int, torch.Tensor]
    ) -> Holding:
        """The same, given where the memory of inputs begins, and of tensors that others share."""
        saved, page.saved = page.saved, []
        made = self.pages[page] = self.holdings.hold(saved, lent, shared, page.owner)
        return made

    def lent(self, run: Bounded) -> frozenset[int]:
        """Where the memory of inputs begins."""
        chunks = sum(len(arena.chunks) for arena in run.own_arenas)
        if chunks and chunks != self._chunks:  # a run that is over has none, and its inputs stay
            self._chunks = chunks
            self._lent = frozenset(
                arena.chunks[arena.starts.index(start)].untyped_storage().data_ptr()
                for arena in run.own_arenas
                for start, _ in lent_ranges(arena)
            )
        return self._lent

    def relieve(self, run: Bounded) -> int:
        """An allocation has failed: let saved values leave; the bytes that did."""
        return self.store.shrink()

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
        """A page is about to be used."""
        self.bring(page)

    def enter_again(self, run: Bounded, page: Page) -> None:
        """The same after an allocation has failed for it."""
        self.enter(run, page)

    def bring(self, page: Page) -> None:
        """Give a page its values."""
        holding = self.pages.get(page)
        if holding is not None:
            was_away = not holding.is_here
            page.saved = list(self.holdings.fetch(holding))
            if was_away and page.versions:
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

    def step_aside(self) -> None:
        """Let all leave: a graph of torch's own is to be made inside the same budget."""
        if self.store.budget is not None:
            self.store.make_room(self.store.budget)

    def explain(self) -> str:
        """What was done, in words."""
        sent = f"{self.store.sent} copies ({in_words(self.store.sent_bytes)})"
        return f"Memory ({self.policy}): {sent} of saved values left memory until backward."


def bytes_of(tensors: Sequence[torch.Tensor], lent: frozenset[int]) -> int:
    """Bytes that tensors need, without memory that stays."""
    return sum(size for place, size in storage_sizes(tensors).items() if place not in lent)


def shared_operands(run: Bounded, launch: Launch) -> dict[int, torch.Tensor]:
    """Tensors that a launch has read as a whole, which others may read too."""
    if not any(arena.is_held for arena in run.own_arenas):
        return {}
    made = {target.arena for target in launch.targets}
    numbers = {
        operand.arena
        for operand in launch.operands
        if isinstance(operand, Span | Picks) and operand.arena not in made
    }
    arenas = (run.arenas[number] for number in numbers)
    chunks = (arena.chunks[0] for arena in arenas if arena.is_held and arena.chunks)
    return {chunk.untyped_storage().data_ptr(): chunk for chunk in chunks}
