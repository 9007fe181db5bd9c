"""The summary of a profile: totals, and one line per block, as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.profiling.records import CallRecord, LaunchRecord
from penstock.profiling.words import bytes_in_words, counted, seconds_in_words

if TYPE_CHECKING:
    from penstock.profiling.profile import Profile

HEADER = ("block", "launches", "rows", "mean width", "gathered", "seconds", "share")


def summarise(profile: Profile) -> str:
    """Totals and table of a profile."""
    lines = _totals(profile)
    launches = profile.launches
    if launches:
        lines += ["", *_table(launches)]
    return "\n".join(lines)


def by_block(launches: Sequence[LaunchRecord]) -> dict[str, list[LaunchRecord]]:
    """Launches by block, the block that took longest first."""
    found: dict[str, list[LaunchRecord]] = {}
    for launch in launches:
        found.setdefault(launch.block, []).append(launch)
    return dict(sorted(found.items(), key=lambda item: -_seconds(item[1])))


def _seconds(launches: Sequence[LaunchRecord]) -> float:
    return sum(launch.seconds for launch in launches)


def _totals(profile: Profile) -> list[str]:
    calls = profile.calls
    work = [
        counted(len(calls), "call"),
        counted(sum(call.instances for call in calls), "instance"),
        counted(len(profile.launches), "launch"),
        counted(sum(call.firings for call in calls), "firing"),
        counted(len(profile.reads), "read"),
        f"{counted(profile.traces, 'trace')} made",
        *([counted(len(profile.retraces), "retrace")] if profile.retraces else ()),
        counted(profile.cache_hits, "cache hit"),
        counted(profile.plan_hits, "plan hit"),
    ]
    times = [
        f"planning {seconds_in_words(sum(call.planning_seconds for call in calls))}",
        f"running {seconds_in_words(sum(call.running_seconds for call in calls))}",
        f"building {seconds_in_words(sum(call.building_seconds for call in calls))}",
    ]
    if any(call.engine_seconds is not None for call in calls):
        recording = sum(call.recording_seconds for call in calls)
        times.insert(0, f"recording {seconds_in_words(recording)}")
    return [", ".join(work), ", ".join(times), _memory(calls), *_waits(profile)]


def _memory(calls: Sequence[CallRecord]) -> str:
    """The most that one call has held."""
    saved = max((call.saved_bytes for call in calls), default=0)
    told = [
        f"rows {bytes_in_words(max((call.arena_bytes for call in calls), default=0))}",
        f"saved for backward {bytes_in_words(saved)}",
    ]
    for device in sorted({device for call in calls for device in call.peak_bytes}):
        most = max(call.peak_bytes.get(device, 0) for call in calls)
        told.append(f"peak of {device} {bytes_in_words(most)}")
    return f"memory of a call, at most: {', '.join(told)}"


def _waits(profile: Profile) -> Iterator[str]:
    """How long the queue of each device stood still."""
    for device in sorted({wait.device for wait in profile.waits}):
        mine = [wait.seconds for wait in profile.waits if wait.device == device]
        yield f"{device} waited {seconds_in_words(sum(mine))} in {counted(len(mine), 'wait')}"


def _table(launches: Sequence[LaunchRecord]) -> list[str]:
    total = _seconds(launches)
    rows = [_row(block, mine, total) for block, mine in by_block(launches).items()]
    cells = [HEADER, *rows, _row("total", launches, total)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    return [_aligned(row, widths) for row in cells]


def _row(name: str, launches: Sequence[LaunchRecord], total: float) -> tuple[str, ...]:
    count, rows, seconds = len(launches), sum(item.rows for item in launches), _seconds(launches)
    return (
        name,
        f"{count:,}",
        f"{rows:,}",
        f"{rows / count:,.1f}",
        bytes_in_words(sum(launch.gathered_bytes for launch in launches)),
        f"{seconds:.6f}",
        f"{seconds / total if total else 0:.1%}",
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """The name to the left, numbers to the right."""
    numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join((row[0].ljust(widths[0]), *numbers))
