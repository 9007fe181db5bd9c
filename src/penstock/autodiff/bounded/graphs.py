"""What torch's own autograd saves, inside a budget: graphs of gradients that are differentiated.

Torch tells of every tensor that it saves and asks for it again. Those in memory of their own go to
a store, each storage once; inputs and weights stay where they are. Backward passes may run on any
thread, and saved tensors are dropped by whoever lets go of a graph.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import AbstractContextManager
from typing import NamedTuple
from weakref import ReferenceType, ref

import torch

from penstock.autodiff.versions import check_version, version_of
from penstock.run.memory.parcels import Extensions, Parcel
from penstock.run.memory.policy import in_words
from penstock.run.memory.store import Store


class Lent(NamedTuple):
    """A saved tensor whose memory is not the graph's."""

    values: torch.Tensor
    version: int


class Packed:
    """A saved tensor in the store, while a graph has it."""

    __slots__ = ("graph", "offset", "parcel", "shape", "stride")

    def __init__(
        self, graph: BoundedGraph, parcel: Parcel, whole: torch.Tensor, values: torch.Tensor
    ) -> None:
        self.graph, self.parcel = graph, parcel
        self.shape, self.stride = tuple(values.shape), values.stride()
        self.offset = int(values.storage_offset() - whole.storage_offset())

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The tensor, in the memory that the parcel has now."""
        offset = self.offset + int(whole.storage_offset())
        return whole.as_strided(self.shape, self.stride, offset)

    def __del__(self) -> None:
        self.graph.let_go(self.parcel)


#: Where a storage begins, and what lies in it.
_Place = tuple[int, torch.dtype]


class BoundedGraph:
    """The saved tensors of a graph.

    Arguments:
        budget: bytes of them that may be in memory at once, beside those of the node at work.
    """

    def __init__(self, budget: int) -> None:
        self.store = Store(budget)
        self._lock = threading.Lock()
        #: How many saved tensors are in a parcel.
        self._uses: Counter[Parcel] = Counter()
        #: Parcels in the order in which they were made.
        self._made: dict[Parcel, None] = {}
        #: The parcels that are here, by the memory of their tensors, as long as these live.
        self._here: dict[_Place, tuple[ReferenceType[torch.Tensor], Parcel]] = {}
        #: Where memory begins that is not the graph's.
        self._lent: set[int] = set()
        #: Parcels of saved tensors that are gone, and were not looked at yet.
        self._gone: deque[Parcel] = deque()

    def saving(self) -> AbstractContextManager[None]:
        """Around what makes the graph."""
        made: AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(
            self._pack, self._unpack
        )
        return made

    def lend(self, values: torch.Tensor) -> torch.Tensor:
        """Leave these values where they are, whoever saves them."""
        self._lent.add(values.untyped_storage().data_ptr())
        return values

    def turn(self) -> None:
        """All that was saved so far will be wanted, the last one first."""
        with self._lock:
            self.store.expect(list(reversed(self._made)))

    def _pack(self, values: torch.Tensor) -> Lent | Packed:
        values = values.detach()
        place = values.untyped_storage().data_ptr() if values.layout == torch.strided else 0
        if not place or place in self._lent:
            return Lent(values, version_of(values))
        with self._lock:
            packed = self._put(values.resolve_conj().resolve_neg())
        self._look_at_gone()
        return packed

    def _put(self, values: torch.Tensor) -> Packed:
        whole, parcel = self._find(values)
        if whole is None or parcel is None:
            lying = Extensions([values])
            (values,) = lying.compact([values])
            whole = _whole(values)
            parcel = self.store.put([whole], sum(lying.sizes.values()))
            self._made[parcel] = None
            self._note_here(whole, parcel)
        self._uses[parcel] += 1
        return Packed(self, parcel, whole, values)

    def _find(self, values: torch.Tensor) -> tuple[torch.Tensor | None, Parcel | None]:
        """The parcel that has the memory of a tensor, if it is here."""
        place = values.untyped_storage().data_ptr(), values.dtype
        whole, parcel = self._here.get(place, (lambda: None, None))
        return (whole(), parcel) if parcel in self._uses else (None, None)

    def _note_here(self, whole: torch.Tensor, parcel: Parcel) -> None:
        place = whole.untyped_storage().data_ptr(), whole.dtype
        self._here[place] = ref(whole), parcel

    def _unpack(self, packed: Lent | Packed) -> torch.Tensor:
        if isinstance(packed, Lent):
            check_version(packed.values, packed.version)
            return packed.values
        with self._lock:
            (whole,) = self.store.fetch(packed.parcel)
            self._note_here(whole, packed.parcel)
            self.store.leave(packed.parcel)
        self._look_at_gone()
        return packed.of(whole)

    def let_go(self, parcel: Parcel) -> None:
        """A saved tensor is not needed any more; any thread may say so, at any time."""
        self._gone.append(parcel)
        self._look_at_gone()

    def _look_at_gone(self) -> None:
        """Drop what nobody needs; whoever is at work does it, if somebody is."""
        while self._gone and self._lock.acquire(blocking=False):
            try:
                while self._gone:
                    self._drop_one(self._gone.popleft())
            finally:
                self._lock.release()

    def _drop_one(self, parcel: Parcel) -> None:
        self._uses[parcel] -= 1
        if not self._uses[parcel]:
            del self._uses[parcel], self._made[parcel]
            self.store.drop(parcel)
        if not self._uses:
            self._here.clear()

    def explain(self) -> str:
        """What was done, in words."""
        sent = f"{self.store.sent} copies ({in_words(self.store.sent_bytes)})"
        return f"of what torch saved for gradients of gradients {sent} have left memory"


def _whole(values: torch.Tensor) -> torch.Tensor:
    """All that the storage of a tensor holds, as one row of its type."""
    storage = values.untyped_storage()
    row = torch.empty(0, dtype=values.dtype, device=values.device)
    return row.set_(storage, 0, (storage.nbytes() // values.dtype.itemsize,), (1,))
