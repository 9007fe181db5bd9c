"""Slots as index tensors on a device.

Consecutive slots are a piece of one long count that is kept for each device, so that they cost no
copy. Compilers like indices that begin at a multiple of 16 bytes: there is a second count for odd
beginnings.
"""

from __future__ import annotations

import torch

from penstock.plan.schedule import Picks, Span

#: For each device the numbers from 0 on, and those from 1 on.
_counts: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}


class Indices:
    """The index tensors of one launch, each made once: its backward half reads the same slots."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], torch.Tensor] = {}

    def of(self, source: Span | Picks, device: torch.device, start: int = 0) -> torch.Tensor:
        """The slots of an operand or a target, counted from the slot `start` on."""
        if isinstance(source, Span):
            return _piece(device, source.start - start, source.count)
        key = (id(source.slots), start)
        if key not in self._known:
            slots = source.slots - start if start else source.slots
            self._known[key] = torch.from_numpy(slots).to(device, non_blocking=True)
        return self._known[key]


def _piece(device: torch.device, first: int, count: int) -> torch.Tensor:
    known = _counts.get(device)
    if known is None or known[0].shape[0] < first + count:
        size = max(4096, 2 * (first + count))
        whole = torch.arange(size + 1, device=device)
        known = _counts[device] = whole[:size], whole[1:].clone()
    odd = first % 2
    return known[odd][first - odd : first - odd + count]
