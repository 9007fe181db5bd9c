"""A profile as a trace for Perfetto and chrome://tracing: one row of the picture for each device.

The format is the JSON of trace events. Times are microseconds since the first call. Calls, planning
and reads have rows of their own, above the devices; a device's row has its launches, and the times
in which its queue stood still.
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
ROWS = ("calls", "planning", "reads")

_PROCESS = 1


def write_chrome_trace(profile: Profile, path: str | PathLike[str]) -> None:
    """Write the trace of a profile."""
    trace = {"traceEvents": list(trace_events(profile)), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


def trace_events(profile: Profile) -> Iterator[dict[str, Any]]:
    """All events of a trace: names of rows first, then what happened."""
    devices = {launch.device for launch in profile.launches} | {
        wait.device for wait in profile.waits
    }
    threads = {name: number for number, name in enumerate((*ROWS, *sorted(devices)))}
    yield _named("process_name", 0, name="penstock")
    for name, number in threads.items():
        yield _named("thread_name", number, name=name)
        yield _named("thread_sort_index", number, sort_index=number)
    start = min((call.began for call in profile.calls), default=0.0)
    for row, name, began, seconds, about in _happenings(profile):
        yield {
            "name": name,
            "cat": row if row in ROWS else "device",
            "ph": "X",
            "ts": 1e6 * (began - start),
            "dur": 1e6 * seconds,
            "pid": _PROCESS,
            "tid": threads[row],
            "args": about,
        }


def _named(kind: str, thread: int, **about: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": about}


def _happenings(profile: Profile) -> Iterator[tuple[str, str, float, float, dict[str, Any]]]:
    """Row, name, begin, seconds and more about everything that takes time."""
    for call in profile.calls:
        yield "calls", call.name, call.began, call.seconds, _about_call(call)
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
