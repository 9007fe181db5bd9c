"""Slots as index tensors on a device.

Consecutive slots are a piece of one long count that is kept for each device, so that they cost no
copy. Others wait until the first of them is asked for: then all that wait are brought to the device
in one copy. Compilers like indices that begin at a multiple of 16 bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch

from penstock.plan.schedule import Integers, Picks, Span
from penstock.run.capturing import refuse_while_capturing

#: Finds an index tensor, whatever it is asked with.
FindIndex: TypeAlias = Callable[..., torch.Tensor]

#: Pieces of counts that are remembered: launches of few rows use the same ones again and again.
PIECES = 4096

#: For each device the numbers from 0 on, and those from 1 on.
_counts: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
#: A plan may be run by several threads: what one of them brings, the others wait for.
_bringing = threading.Lock()


class Index:
    """Slots that are or will be on a device."""

    __slots__ = ("_indices", "device", "slots", "tensor")

    def __init__(self, slots: Integers, device: torch.device, indices: Indices) -> None:
        self.slots = slots
        self.device = device
        #: Those that it is brought with; None once that is done, so that there is no cycle.
        self._indices: Indices | None = indices
        #: None as long as nobody has asked for it.
        self.tensor: torch.Tensor | None = None

    def __call__(self, where: object = None) -> torch.Tensor:
        indices = self._indices
        if indices is not None:
            indices.bring()
        assert self.tensor is not None
        return self.tensor

    def take(self, tensor: torch.Tensor) -> None:
        """Here it is."""
        self.tensor, self._indices = tensor, None


class Indices:
    """Index tensors that are wanted together, each made once."""

    __slots__ = ("_here", "_known", "_waiting")

    def __init__(self) -> None:
        #: By the array that lists the slots, which whoever asks keeps, and where counting starts.
        self._known: dict[tuple[int, int], Index] = {}
        self._here: dict[tuple[int, int], torch.Tensor] = {}
        self._waiting: list[Index] = []

    def of(self, source: Span | Picks, device: torch.device, start: int = 0) -> FindIndex:
        """The slots of an operand or a target, counted from the slot `start` on."""
        if type(source) is Span:
            piece = count(device, source.start - start, source.count)
            return lambda where=None: piece
        slots = source.slots  # type: ignore[union-attr]
        if device.type == "cpu" and not torch.is_inference_mode_enabled():
            here = self._at_once(slots, start)
            return lambda where=None: here
        key = (id(slots), start)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self.wait(slots, device, start)
        return known

    def find(
        self, source: Span | Picks, device: torch.device, start: int = 0
    ) -> torch.Tensor | FindIndex:
        """The same as a tensor, where it is on its device already."""
        if type(source) is Span:
            return count(device, source.start - start, source.count)
        if device.type == "cpu" and not torch.is_inference_mode_enabled():
            return self._at_once(source.slots, start)  # type: ignore[union-attr]
        found = self.of(source, device, start)
        return found() if device.type == "cpu" else found

    def _at_once(self, slots: Integers, start: int) -> torch.Tensor:
        """Slots on the host, where nothing travels."""
        key = (id(slots), start)
        found = self._here.get(key)
        if found is None:
            found = self._here[key] = torch.from_numpy(slots - start if start else slots)
        return found

    def wait(self, slots: Integers, device: torch.device, start: int = 0) -> Index:
        """Slots that will be brought to the device with the next ones."""
        index = Index(slots - start if start else slots, device, self)
        if device.type == "cpu" and not torch.is_inference_mode_enabled():
            index.take(torch.from_numpy(index.slots))
            return index
        with _bringing:
            self._waiting.append(index)
        return index

    def bring(self) -> None:
        """Bring all that wait to their devices."""
        refuse_while_capturing()
        with _bringing, torch.inference_mode(False):  # runs that are differentiated may use them
            waiting, self._waiting = self._waiting, []
            self._bring_all(waiting)

    def _bring_all(self, waiting: list[Index]) -> None:
        for device in {index.device for index in waiting}:
            _bring(device, [index for index in waiting if index.device == device])


def _bring(device: torch.device, indices: list[Index]) -> None:
    if device.type == "cpu":
        for index in indices:
            index.take(torch.from_numpy(index.slots))
        return
    sizes = [len(index.slots) for index in indices]
    starts = np.cumsum([0] + [size + size % 2 for size in sizes])
    is_pinned = device.type == "cuda"
    together = torch.empty(int(starts[-1]), dtype=torch.int64, pin_memory=is_pinned)
    view = together.numpy()
    for index, start, size in zip(indices, starts, sizes):
        view[start : start + size] = index.slots
    brought = together.to(device, non_blocking=True)
    for index, start, size in zip(indices, starts, sizes):
        index.take(brought[start : start + size])


@lru_cache(PIECES)
def count(device: torch.device, first: int, size: int) -> torch.Tensor:
    """The numbers `first`, `first` + 1, ..."""
    known = _counts.get(device)
    if known is None or known[0].shape[0] < first + size:
        room = max(4096, 2 * (first + size))
        with torch.inference_mode(False):
            whole = torch.arange(room + 1, device=device)
            known = _counts[device] = whole[:room], whole[1:].clone()
    odd = first % 2
    return known[odd][first - odd : first - odd + size]
