"""Tensors held in a store: each as a view of a parcel, of which several may share one.

Memory that stays anyway is not put into the store: inputs of the run are the caller's. A tensor
that several launches read, as padded sequences are, is a parcel of its own and goes with the last
that holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from penstock.run.memory.parcels import Extensions, Owner, Parcel, nobody
from penstock.run.memory.room import with_room
from penstock.run.memory.store import Store


class Part(NamedTuple):
    """Some of the tensors of a holding, by their positions: those of a parcel, or one that lies in
    the only tensor of one.
    """

    parcel: Parcel
    positions: Sequence[int]
    view: Inside | None = None


class Inside(NamedTuple):
    """How a tensor lies in another of its type."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        return whole.as_strided(self.shape, self.stride, self.offset + int(whole.storage_offset()))


def _inside(tensor: torch.Tensor, whole: torch.Tensor) -> Inside:
    offset = tensor.storage_offset() - whole.storage_offset()
    return Inside(tuple(tensor.shape), tensor.stride(), int(offset))


@dataclass(slots=True, eq=False)
class Holding:
    """Some tensors in a store."""

    count: int
    parts: list[Part] = field(default_factory=list)
    #: Tensors whose memory stays, by their positions.
    lent: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def parcels(self) -> Iterator[Parcel]:
        """What must be here for the tensors to be."""
        return (part.parcel for part in self.parts)

    def joined(self, other: Holding) -> Holding:
        """Both as one, which takes them over."""
        made = Holding(self.count + other.count, list(self.parts), dict(self.lent))
        for part in other.parts:
            moved = [self.count + position for position in part.positions]
            made.parts.append(part._replace(positions=moved))
        made.lent |= {self.count + position: each for position, each in other.lent.items()}
        return made

    def lent_places(self) -> Iterator[int]:
        """Where the memory begins that stays."""
        return (each.untyped_storage().data_ptr() for each in self.lent.values())

    @property
    def is_here(self) -> bool:
        """Whether nothing of it has to come."""
        return all(part.parcel.is_here for part in self.parts)

    @property
    def size(self) -> int:
        """Bytes that it needs here."""
        return sum(parcel.size for parcel in self.parcels)


class Holdings:
    """All holdings of a run."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Parcels of tensors that others may share, while the tensors live.
        self._shared = WeakIdKeyDictionary()
        #: How many holdings use a parcel that may be shared.
        self._uses: Counter[Parcel] = Counter()

    def hold(
        self,
        tensors: Sequence[torch.Tensor],
        lent: AbstractSet[int],
        shared: Mapping[int, torch.Tensor],
        owner: Owner = nobody,
    ) -> Holding:
        """Put tensors into the store: all but those in memory that stays, given by where storages
        begin; `shared` are tensors that others may share, by the same. `owner` says whose they are.
        """
        made = Holding(len(tensors))
        lying = Extensions(tensors)
        places = lying.sizes.keys()
        is_own = 0 not in places and places.isdisjoint(lent) and places.isdisjoint(shared)
        if is_own and not lying.sparse and len({tensor.device for tensor in tensors}) == 1:
            parcel = self.store.put(list(tensors), sum(lying.sizes.values()), owner)
            made.parts.append(Part(parcel, range(len(tensors))))
            return made
        return self._hold_apart(made, tensors, lying.places, lent, shared, owner)

    def _hold_apart(
        self,
        made: Holding,
        tensors: Sequence[torch.Tensor],
        places: Sequence[int],
        lent: AbstractSet[int],
        shared: Mapping[int, torch.Tensor],
        owner: Owner,
    ) -> Holding:
        own: dict[torch.device, list[int]] = {}
        for position, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
            if place in lent or not place:
                made.lent[position] = tensor
            elif place in shared and shared[place].dtype == tensor.dtype:
                whole = shared[place]
                parcel = self._parcel_of(whole, owner)
                made.parts.append(Part(parcel, (position,), _inside(tensor, whole)))
            else:
                own.setdefault(tensor.device, []).append(position)
        for positions in own.values():
            chosen = [tensors[k] for k in positions]
            lying = Extensions(chosen)
            compacted = with_room(partial(lying.compact, chosen), self.store.shrink)
            parcel = self.store.put(compacted, sum(lying.sizes.values()), owner)
            made.parts.append(Part(parcel, positions))
        return made

    def _parcel_of(self, tensor: torch.Tensor, owner: Owner) -> Parcel:
        parcel: Parcel | None = self._shared.get(tensor)  # type: ignore[no-untyped-call]
        if parcel is None or not self._uses[parcel]:
            size = tensor.untyped_storage().nbytes()
            parcel = self._shared[tensor] = self.store.put([tensor], size, owner)
        self._uses[parcel] += 1
        return parcel

    def fetch(self, holding: Holding) -> list[torch.Tensor]:
        """The tensors; they stay until `leave` or `drop`."""
        if len(holding.parts) == 1 and not holding.lent and holding.parts[0].view is None:
            return self.store.fetch(holding.parts[0].parcel)
        found = dict(holding.lent)
        for parcel, positions, view in holding.parts:
            tensors = self.store.fetch(parcel)
            if view is not None:
                tensors = [view.of(tensors[0])]
            found.update(zip(positions, tensors, strict=True))
        return [found[position] for position in range(holding.count)]

    def leave(self, holding: Holding) -> None:
        """The tensors are not used for now."""
        for parcel in holding.parcels:
            self.store.leave(parcel)

    def drop(self, holding: Holding) -> None:
        """The tensors are not needed any more."""
        for parcel in holding.parcels:
            if parcel in self._uses:
                self._uses[parcel] -= 1
                if self._uses[parcel]:
                    self.store.leave(parcel)
                    continue
                del self._uses[parcel]
            self.store.drop(parcel)
        holding.parts, holding.lent = [], {}
