"""A profile as a trace for Perfetto and chrome://tracing: one row of the picture for each device.

The format is the JSON of trace events. Times are microseconds since the first call. Calls,
building, planning and reads have rows of their own, above the devices; a device's row has its
launches, and the times in which its queue stood still. What overlaps in a row without one being
inside the other, as calls of two threads do, is drawn in a second row: Perfetto drops it otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.profiling.records import CallRecord, LaunchRecord

if TYPE_CHECKING:
    from penstock.profiling.profile import Profile

#: The rows that every trace has; devices come after them.
ROWS = ("calls", "building", "planning", "reads")

_PROCESS = 1

#: By how many nanoseconds times on a device that follow each other may seem to overlap.
_CLOCK_ERROR = 2_000


def write_chrome_trace(profile: Profile, path: str | PathLike[str]) -> None:
    """Write the trace of a profile."""
    trace = {"traceEvents": list(trace_events(profile)), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


def trace_events(profile: Profile) -> Iterator[dict[str, Any]]:
    """All events of a trace: names of rows first, then what happened."""
    start = min((call.began for call in profile.calls), default=0.0)
    rows = {name: Row(name) for name in ROWS}
    events = []
    for place, name, began, seconds, about in sorted(_happenings(profile), key=_by_time):
        row = rows.setdefault(place, Row(place))
        events.append((row, *row.place(name, began - start, seconds, about)))
    devices = sorted(set(rows) - set(ROWS))
    lanes = [(rows[name], lane) for name in (*ROWS, *devices) for lane in rows[name].lanes]
    # Numbers start with 1: 0 is the idle thread of a machine.
    threads = {(row.name, lane): number for number, (row, lane) in enumerate(lanes, 1)}
    yield _named("process_name", 1, name="penstock")
    for (name, lane), number in threads.items():
        yield _named("thread_name", number, name=f"{name} ({lane + 1})" if lane else name)
        yield _named("thread_sort_index", number, sort_index=number)
    for row, lane, event in events:
        yield {**event, "pid": _PROCESS, "tid": threads[row.name, lane]}


class Row:
    """A row of the picture, in as many lanes as it needs to keep overlapping events apart."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: For each lane the ends of what is open in it, in nanoseconds, the outermost first.
        self._open: list[list[int]] = [[]]

    @property
    def lanes(self) -> range:
        """The numbers of the lanes."""
        return range(len(self._open))

    def place(
        self, name: str, began: float, seconds: float, about: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """The lane of something that happened, later than what was placed before, and its event."""
        first = round(1e9 * began)
        last = first + max(0, round(1e9 * seconds))
        lane, first = self._find_lane(first, last)
        self._open[lane].append(last)
        category = self.name if self.name in ROWS else "device"
        times = {"ts": first / 1e3, "dur": (last - first) / 1e3}
        return lane, {"name": name, "cat": category, "ph": "X", **times, "args": about}

    def _find_lane(self, first: int, last: int) -> tuple[int, int]:
        """The first lane where it is inside or after all else, and its beginning there."""
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= first:
                ends.pop()
            if not ends or last <= ends[-1]:
                return lane, first
            if ends[-1] - first < _CLOCK_ERROR:
                return lane, ends.pop()
        self._open.append([])
        return len(self._open) - 1, first


def _by_time(happening: tuple[str, str, float, float, dict[str, Any]]) -> tuple[float, float]:
    """What holds others comes before them."""
    _, _, began, seconds, _ = happening
    return began, -seconds


def _named(kind: str, thread: int, **about: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": about}


def _happenings(profile: Profile) -> Iterator[tuple[str, str, float, float, dict[str, Any]]]:
    """Row, name, begin, seconds and more about everything that takes time."""
    for call in profile.calls:
        yield "calls", call.name, call.began, call.seconds, _about_call(call)
    for built in profile.builds:
        about: dict[str, Any] = {"call": built.call.name}
        yield "building", f"build {built.block}", built.began, built.seconds, about
    for plan in profile.plans:
        about = {"call": plan.call.name, "firings": plan.firings}
        yield "planning", f"plan {plan.call.name}", plan.began, plan.seconds, about
    for event in profile.events:
        if isinstance(event, LaunchRecord):
            yield event.device, event.block, event.began, event.seconds, about_launch(event)
        else:
            about = {"call": event.call.name, "values": event.values}
            yield "reads", "read", event.began, event.seconds, about
    for wait in profile.waits:
        about = {"call": wait.call.name}
        yield wait.device, f"wait {wait.reason}", wait.began, wait.seconds, about


def _about_call(call: CallRecord) -> dict[str, Any]:
    return {
        "instances": call.instances,
        "firings": call.firings,
        "known plan": call.has_known_plan,
        "planning seconds": call.planning_seconds,
        "building seconds": call.building_seconds,
        "arena bytes": call.arena_bytes,
        "saved bytes": call.saved_bytes,
        **{f"peak bytes of {device}": count for device, count in call.peak_bytes.items()},
    }


def about_launch(launch: LaunchRecord) -> dict[str, Any]:
    """What there is to say about a launch besides its name and time."""
    source = launch.node.source
    return {
        "rows": launch.rows,
        "shapes": [list(shape) for shape in launch.shapes],
        "sources": list(launch.sources),
        "device": launch.device,
        "gathered bytes": launch.gathered_bytes,
        "written bytes": launch.written_bytes,
        "host seconds": launch.host_seconds,
        "call": launch.call.name,
        "source": "" if source is None else str(source),
    }
