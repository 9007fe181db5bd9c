"""How fast bytes leave a device and come back: measured once for each device, when first asked."""

from __future__ import annotations

from functools import cache
from time import perf_counter
from typing import NamedTuple

import torch

from penstock.run.memory.parcels import Backing
from penstock.run.memory.policy import in_words
from penstock.run.memory.store import new_backing

#: Bytes that are copied to measure it, by the type of the device, and how often.
PROBE, ROUNDS = {"cpu": 4 << 20, "cuda": 64 << 20}, 3


#: What each copy takes besides, by the type of the device: on a CPU whoever launches packs the
#: bytes and hands them over.
TURNS = {"cpu": 2e-4, "cuda": 0.0}


class Bandwidth(NamedTuple):
    """Bytes a second, and seconds for each copy however small it is."""

    out: float
    back: float
    start: float

    def seconds(self, size: int, copies: int) -> tuple[float, float]:
        """How long so many copies of so many bytes in all take, out and back."""
        return size / self.out + copies * self.start, size / self.back + copies * self.start

    def __str__(self) -> str:
        return f"{in_words(self.out)}/s out, {in_words(self.back)}/s back"


@cache
def bandwidth_of(device: torch.device) -> Bandwidth:
    """The best of a few copies of some megabytes."""
    backing = new_backing(device)
    size = PROBE[device.type]
    out, back = _best(backing, device, size)
    start = TURNS[device.type] + min(_best(backing, device, 64))
    return Bandwidth(size / out, size / back, start)


def _best(backing: Backing, device: torch.device, size: int) -> tuple[float, float]:
    rounds = [_round(backing, device, size) for _ in range(ROUNDS)]
    return min(out for out, _ in rounds), min(back for _, back in rounds)


def _round(backing: Backing, device: torch.device, size: int) -> tuple[float, float]:
    """The seconds of one copy out, and of one back."""
    values = torch.zeros(size, dtype=torch.uint8, device=device)
    _wait(device)
    began = perf_counter()
    away = backing.send([values])
    away.settle()
    _wait(device)
    sent = perf_counter()
    away.bring().settle()
    _wait(device)
    brought = perf_counter()
    away.free()
    return sent - began, brought - sent


class DeviceTimer:
    """Times what a GPU does between two moments, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._start, self._end = self._event(), self._event()
        self._start.record(self._stream)

    def stop(self) -> None:
        """The second moment."""
        self._end.record(self._stream)

    def seconds(self) -> float | None:
        """The seconds between them; None while the device is not done."""
        if not self._end.query():  # type: ignore[no-untyped-call]
            return None
        milliseconds: float = self._start.elapsed_time(self._end)
        return milliseconds / 1e3

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
