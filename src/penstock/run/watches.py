"""Times launches: by the host's clock, or by events on their GPU that are read when asked for.

A GPU's clock is set by that of the host once in a profile, for which the host waits; after that no
launch makes it wait. Whether torch's own profiler is on is asked here too.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeAlias

import torch

#: Seconds, or how to find them out.
Seconds: TypeAlias = float | Callable[[], float]

#: Whether torch's own profiler is on; private, but what its own modules ask.
torch_profiles: Callable[[], bool] = torch._C._autograd._profiler_enabled


class DeviceClock:
    """The clock of one GPU, set by the host's."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self._start = new_event(torch.cuda.current_stream(device))
        self._began = perf_counter()

    def when(self, event: torch.cuda.Event) -> float:
        """When an event happened; waits for it."""
        event.synchronize()
        return self._began + elapsed(self._start, event)


#: The clocks of a profile, by device.
Clocks: TypeAlias = dict[str, DeviceClock]


class Watch:
    """Times one launch on a GPU."""

    __slots__ = ("_clock", "_event", "_stream")

    def __init__(self, device: str, clocks: Clocks) -> None:
        place = torch.device(device)
        self._clock = clocks.get(device) or clocks.setdefault(device, DeviceClock(place))
        self._stream = torch.cuda.current_stream(place)
        self.start_again()

    def start_again(self) -> None:
        """Do not count what came before."""
        self._event = new_event(self._stream)

    def stop(self) -> tuple[Seconds, Seconds]:
        """How to find out when it began, and the time since then."""
        start, end, clock = self._event, new_event(self._stream), self._clock

        def seconds() -> float:
            end.synchronize()
            return elapsed(start, end)

        return lambda: clock.when(start), seconds


def new_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event that happens when all that is in a stream by now is done."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def elapsed(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Seconds between two events."""
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3
