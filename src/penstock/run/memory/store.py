"""The parcels of one run, inside a budget of bytes.

Parcels are wanted in the reverse order of their making, so the oldest leave first. They are sent
before the budget is used up, and dropped when it is; on the way back the next ones in order come
before they are wanted, as far as there is room. The parcel that is in use is always here, however
large it is.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from penstock.errors import SpillError
from penstock.run.memory.parcels import Backing, Owner, Parcel, nobody
from penstock.run.memory.spill_file import SpillFile

#: Bytes in memory where a policy sends everything away and names no budget: what copies need to
#: go on beside the launches.
IN_FLIGHT = 64 << 20

#: The part of the budget over which parcels are sent, to be away when it is used up.
EARLY = 0.75

#: Whether the bytes of every parcel are checked when they come back.
CHECKS = bool(os.environ.get("PENSTOCK_CHECK_SWAPPED"))


def new_backing(device: torch.device, *, is_short: bool = False) -> Backing:
    """Where the bytes of a device go; whether memory is short already."""
    if device.type == "cuda":
        from penstock.run.memory.pinned import PinnedMemory

        return PinnedMemory(device)
    return SpillFile(alone=is_short)


@contextmanager
def _naming(each: Parcel) -> Iterator[None]:
    """An error says whose values they are that cannot be written or read."""
    try:
        yield
    except SpillError as error:
        if owner := each.owner():
            error.add_note(f"These are {owner}.")
        raise


class Store:
    """Parcels that are here, away, or on their way.

    Arguments:
        budget: bytes that may be here at once; None for no bound.
    """

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        #: The part of it over which parcels are sent.
        self.early = EARLY
        #: Bytes that are here or on their way back, now and at most.
        self.bytes = self.peak = 0
        #: Bytes that were taken in all.
        self.taken = 0
        #: Bytes that were sent in all, and parcels.
        self.sent_bytes = self.sent = 0
        #: Bytes of values outside of the store that share its budget.
        self.beside = 0
        #: Told the bytes taken so far, before launches first have to wait until a parcel is away.
        self.before_waiting: Callable[[int], None] | None = None
        #: What else to do instead of sending a parcel; says whether it is done.
        self.instead: Callable[[Parcel], bool] | None = None
        #: Parcels that are here, in the order in which they leave.
        self._here: OrderedDict[Parcel, None] = OrderedDict()
        #: Those of them that nobody has sent yet, likewise.
        self._unsent: OrderedDict[Parcel, None] = OrderedDict()
        #: Bytes that are here and have a copy elsewhere.
        self._copied = 0
        self._in_use: set[Parcel] = set()
        #: Parcels in the order in which they will be wanted, the next one last, and their places.
        self._expected: list[Parcel] = []
        self._places: dict[Parcel, int] = {}
        #: The place of the next one to bring.
        self._next = -1
        self._backings: dict[torch.device, Backing] = {}
        #: Whether an allocation has failed.
        self._is_short = False
        self._count = 0

    # ---- forward ---------------------------------------------------------------------------------

    def put(self, tensors: list[torch.Tensor], size: int, owner: Owner = nobody) -> Parcel:
        """Take tensors on one device, which nobody else writes to; their storages have so many
        bytes.
        """
        made = Parcel(size, tensors[0].device, tensors, owner=owner)
        self._count += 1
        self.taken += size
        self._add(made)
        self._unsent[made] = None
        self._send_early()
        self.make_room()
        return made

    def make_room(self, more: int = 0) -> None:
        """Let parcels leave until the budget has room for so many more bytes."""
        self.peak = max(self.peak, self.bytes + self.beside)
        if self.budget is None:
            return
        room = self.budget - self.beside - more
        while self.bytes > room:
            oldest = next((each for each in self._here if each not in self._in_use), None)
            if oldest is None:
                return
            self._leave(oldest)

    def _send_early(self) -> None:
        """Start to send the oldest parcels, to be away when the budget is used up."""
        if self.budget is None:
            return
        room = self.early * (self.budget - self.beside)
        while self._unsent and self.bytes - self._copied > room:
            oldest = next(iter(self._unsent))
            if not self._has_gone(oldest):
                self._send(oldest)

    def shrink(self) -> int:
        """An allocation has failed: let half of all parcels leave; the bytes that did."""
        before, self._is_short = self.bytes, True
        half = before // 2
        self.budget = half if self.budget is None else min(half, self.budget)
        for each in self._expected:
            if each not in self._in_use:
                self._turn_back(each)
        self.make_room()
        return before - self.bytes

    def _has_gone(self, each: Parcel) -> bool:
        """Do something else than to send a parcel, if there is; what else is dropped for that may
        make it leave too.
        """
        return self.instead is not None and (self.instead(each) or each not in self._unsent)

    def _send(self, each: Parcel) -> None:
        if each.device not in self._backings:
            self._backings[each.device] = new_backing(each.device, is_short=self._is_short)
        with _naming(each):
            each.send(self._backings[each.device], CHECKS)
        self._unsent.pop(each, None)
        self._copied += each.size
        self.sent, self.sent_bytes = self.sent + 1, self.sent_bytes + each.size

    def _leave(self, each: Parcel) -> None:
        """Let a parcel leave memory."""
        if each.away is None:
            if self._has_gone(each):
                return
            self._send(each)
        if self.before_waiting is not None:
            tell, self.before_waiting = self.before_waiting, None
            tell(self.taken)
        assert each.away is not None
        try:
            with _naming(each):
                each.away.settle()
        except SpillError:
            self._unsend(each)
            raise
        each.tensors = []
        self._remove(each)

    def _unsend(self, each: Parcel) -> None:
        """There is no copy of a parcel, which is here still: it may be sent once more."""
        assert each.away is not None
        each.away.free()
        each.away = None
        self._copied -= each.size
        self._unsent[each] = None
        self._unsent.move_to_end(each, last=False)

    # ---- backward --------------------------------------------------------------------------------

    def expect(self, order: Sequence[Parcel]) -> None:
        """The parcels that will be wanted, the first one first."""
        self._expected = list(reversed(order))
        self._places = {each: place for place, each in enumerate(self._expected)}
        self._next = len(order) - 1

    def fetch(self, each: Parcel) -> list[torch.Tensor]:
        """The tensors of a parcel; it stays here until `leave` or `drop`."""
        self._in_use.add(each)
        if not each.is_here:
            if each.arriving is None:
                self._bring(each)
            with _naming(each):
                each.arrive()
            self._here[each] = None
            self._copied += each.size
        self._next = min(self._next, self._places.get(each, len(self._expected)) - 1)
        self._bring_next()
        return each.tensors

    def _bring_next(self) -> None:
        """Start to bring what is wanted next, as far as there is room."""
        while self._next >= 0:
            each = self._expected[self._next]
            if each.away is not None and not each.is_here and each.arriving is None:
                if self.budget is not None and self.bytes + self.beside + each.size > self.budget:
                    return
                self._bring(each)
            self._next -= 1

    def _bring(self, each: Parcel) -> None:
        assert each.away is not None, "a parcel was dropped and is wanted again"
        self.make_room(each.size)
        each.arriving = each.away.bring()
        self._grow(each.size)

    def leave(self, each: Parcel) -> None:
        """A parcel is not used any more for now, and may be the first to leave."""
        self._in_use.discard(each)
        if each in self._here:
            self._here.move_to_end(each, last=False)
        self.make_room()

    def rest(self) -> None:
        """No more parcels are wanted for now: what came and was not wanted leaves again."""
        self._in_use.clear()
        for each in self._expected:
            self._turn_back(each)
        self.expect(())

    def drop(self, each: Parcel) -> None:
        """A parcel is not needed any more; with the last one goes all that holds their bytes."""
        self._in_use.discard(each)
        self._turn_back(each)
        if each.is_here:
            each.tensors = []
            self._remove(each)
        if each.away is not None:
            each.away.free()
            each.away = None
        self._count -= 1
        if not self._count:
            self._backings.clear()

    def _turn_back(self, each: Parcel) -> None:
        """Do not wait for a parcel that is on its way."""
        if each.arriving is not None:
            each.arriving = None
            self.bytes -= each.size

    # ---- counting --------------------------------------------------------------------------------

    def _add(self, each: Parcel) -> None:
        self._here[each] = None
        self._grow(each.size)

    def _remove(self, each: Parcel) -> None:
        self._here.pop(each, None)
        self._unsent.pop(each, None)
        self._copied -= each.size if each.away is not None else 0
        self.bytes -= each.size

    def _grow(self, size: int) -> None:
        self.bytes += size
        self.peak = max(self.peak, self.bytes + self.beside)
