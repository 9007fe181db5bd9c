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
from typing import NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from penstock.run.memory.parcels import Parcel, View, compact, pack
from penstock.run.memory.store import Store


class Part(NamedTuple):
    """Some of the tensors of a holding, by their positions, and how they lie in a parcel."""

    parcel: Parcel
    positions: Sequence[int]
    views: tuple[View, ...]


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
    ) -> Holding:
        """Put tensors into the store: all but those in memory that stays, given by where storages
        begin; `shared` are tensors that others may share, by the same.
        """
        made = Holding(len(tensors))
        own: dict[torch.device, list[int]] = {}
        for position, tensor in enumerate(tensors):
            place = tensor.untyped_storage().data_ptr()
            if place in lent or not place:
                made.lent[position] = tensor
            elif place in shared:
                parcel = self._parcel_of(shared[place])
                made.parts.append(Part(parcel, (position,), pack([tensor])[1]))
            else:
                own.setdefault(tensor.device, []).append(position)
        for positions in own.values():
            parts, views = pack(compact([tensors[k] for k in positions]))
            made.parts.append(Part(self.store.put(parts), positions, views))
        return made

    def _parcel_of(self, tensor: torch.Tensor) -> Parcel:
        parcel: Parcel | None = self._shared.get(tensor)  # type: ignore[no-untyped-call]
        if parcel is None or not self._uses[parcel]:
            parcel = self._shared[tensor] = self.store.put(pack([tensor])[0])
        self._uses[parcel] += 1
        return parcel

    def fetch(self, holding: Holding) -> list[torch.Tensor]:
        """The tensors; they stay until `leave` or `drop`."""
        found = dict(holding.lent)
        for parcel, positions, views in holding.parts:
            parts = self.store.fetch(parcel)
            for position, view in zip(positions, views, strict=True):
                found[position] = view.of(parts)
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
