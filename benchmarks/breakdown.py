"""Where the time of a mapped call goes: recording, planning, building, executing, backward.

Taken from profiles, which time every launch: a profiled call is a little slower than others, so the
parts do not add up to the time that `harness` finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import penstock as ps
from benchmarks.figures import rounded

#: The columns of `Breakdown.milliseconds`.
PARTS = ("recording ms", "planning ms", "building ms", "executing ms", "backward ms")


@dataclass(frozen=True)
class Breakdown:
    """One call. All times are seconds."""

    #: The user's own Python code, and writing down what it asks for.
    recording: float
    planning: float
    #: Making launchable blocks of steps that were not known.
    building: float
    executing: float
    backward: float
    #: Rows of all launches: the steps that were recorded or planned.
    steps: float
    launches: float

    @property
    def width(self) -> float:
        """Rows of a launch, in the mean."""
        return self.steps / max(1, self.launches)

    @property
    def recording_microseconds(self) -> float:
        """What recording takes for each step."""
        return 1e6 * self.recording / max(1, self.steps)

    def milliseconds(self) -> tuple[str, ...]:
        """The times, to be read."""
        parts = (self.recording, self.planning, self.building, self.executing, self.backward)
        return tuple(rounded(1e3 * part) for part in parts)


def break_down(
    call: Callable[[], Any],
    *,
    rounds: int,
    prepare: Callable[[], None] = lambda: None,
    backward: Callable[[Any], Any] | None = None,
) -> Breakdown:
    """Medians over some calls; before each, `prepare` is called."""
    found = []
    for _ in range(rounds):
        prepare()
        with ps.profile() as run:
            output = call()
        begin = perf_counter()
        if backward is not None:
            backward(output)
        found.append(_of_profile(run, perf_counter() - begin if backward else 0.0))
    middles: Any = [median(values) for values in zip(*map(astuple, found), strict=True)]
    return Breakdown(*middles)


def _of_profile(run: Any, backward: float) -> Breakdown:
    # A profile goes on to hear of the backward halves of its launches.
    calls, launches = run.calls, [launch for launch in run.launches if not launch.is_backward]
    return Breakdown(
        recording=sum(call.recording_seconds for call in calls),
        planning=sum(call.planning_seconds for call in calls),
        building=sum(call.building_seconds for call in calls),
        executing=sum(call.running_seconds for call in calls),
        backward=backward,
        steps=sum(launch.rows for launch in launches),
        launches=len(launches),
    )
