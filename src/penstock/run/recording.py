"""Records what runs, for the profiles that are active.

Profiles are found through a context variable when a call starts; the call then carries its recorder
along, also to threads that do not share the variable. Without a profile there is no recorder, and a
launch costs one test for None; where torch's own profiler is on, a recorder without profiles gives
launches their names.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from penstock.ir.graph import Graph
from penstock.ir.program import Program
from penstock.plan.schedule import Copy, Launch, Read, slot_count
from penstock.profiling.profile import Profile
from penstock.profiling.records import (
    BuildRecord,
    CallRecord,
    LaunchRecord,
    PlanRecord,
    ReadRecord,
    SplitRecord,
    WaitRecord,
)
from penstock.profiling.rows import Launched, Received, Sent, Trail
from penstock.run.launch_records import describe, describe_backward, device_of, note_memory
from penstock.run.watches import Clocks, Watch, torch_profiles

if TYPE_CHECKING:
    from penstock.run.prepared import PreparedLaunch
    from penstock.run.runner import Runner


_profiles: ContextVar[tuple[Profile, ...]] = ContextVar("profiles", default=())
_clocks: ContextVar[Clocks | None] = ContextVar("clocks", default=None)


@contextmanager
def profiling(*, check_nan: bool = False) -> Iterator[Profile]:
    """Record all calls made inside, also for the profiles around."""
    profile = Profile(check_nan=check_nan)
    token = _profiles.set((*_profiles.get(), profile))
    clocks = _clocks.set(_clocks.get() or {})
    try:
        yield profile
    finally:
        _clocks.reset(clocks)
        _profiles.reset(token)


class BuildingTime(threading.local):
    """What this thread has spent on building."""

    seconds = 0.0
    #: How many things it is building now, one inside the other.
    depth = 0
    #: Times the launch on a GPU that it has under way.
    watch: Watch | None = None


building_time = BuildingTime()


def count_trace(*, is_hit: bool) -> None:
    """A program was looked up: found, or traced."""
    for profile in _profiles.get():
        profile.cache_hits += is_hit
        profile.traces += not is_hit


@contextmanager
def building() -> Iterator[None]:
    """Time spent inside is not the time of the launch that made it necessary."""
    began = perf_counter()
    building_time.depth += 1
    try:
        yield
    finally:
        building_time.depth -= 1
        building_time.seconds += perf_counter() - began
        if building_time.watch is not None:
            building_time.watch.start_again()


def note_retrace(name: str, reason: str) -> None:
    """A program that had been traced was traced again, for this reason."""
    for profile in _profiles.get():
        profile.retraces.append(f"{name}: {reason}")


def note_split(name: str, instances: int, groups: int, reason: str) -> None:
    """The instances of a map ran in groups, one after the other, for this reason."""
    if groups > 1:
        for profile in _profiles.get():
            profile.splits.append(SplitRecord(name, instances, groups, reason))


@dataclass(frozen=True, slots=True)
class Recorder:
    """The profiles that were active at one place; can be kept and used on other threads."""

    profiles: tuple[Profile, ...]
    clocks: Clocks = field(default_factory=dict)

    @contextmanager
    def call(
        self,
        name: str,
        instances: int,
        graph: Graph | None = None,
        program: Program | None = None,
    ) -> Iterator[CallRecorder]:
        """Record one call of a program, or one scope of recorded steps, which has no graph."""
        record = CallRecord(name, instances, graph, began=perf_counter(), program=program)
        for profile in self.profiles:
            if profile.add_call(record):
                record.trail = Trail()
        checks_nan = any(profile.check_nan for profile in self.profiles)
        recorder = CallRecorder(self.profiles, self.clocks, record, checks_nan)
        try:
            yield recorder
        finally:
            record.seconds = perf_counter() - record.began
            recorder.describe_all()


def current_recorder() -> Recorder | None:
    """The recorder for calls made here; None where nobody looks."""
    profiles = _profiles.get()
    if profiles:
        return Recorder(profiles, _clocks.get() or {})
    return Recorder(()) if torch_profiles() else None


def recorded_call(
    name: str, instances: int, graph: Graph | None = None, program: Program | None = None
) -> AbstractContextManager[CallRecorder | None]:
    """A call or scope that is recorded if somebody looks."""
    recorder = current_recorder()
    if recorder is None:
        return _NOBODY
    return recorder.call(name, instances, graph, program)


_NOBODY: AbstractContextManager[None] = nullcontext()


#: Launches of a call that wait for their description, at most.
MOST_WAITING = 256


@dataclass(frozen=True, slots=True)
class CallRecorder:
    """Records what one call does."""

    profiles: tuple[Profile, ...]
    clocks: Clocks
    record: CallRecord
    #: Whether somebody wants to be told of the first NaN.
    checks_nan: bool
    #: Launches that are still to be described: there is no time for it between them.
    waiting: deque[tuple[LaunchRecord, Runner, PreparedLaunch]] = field(default_factory=deque)

    def planned(self, seconds: float, firings: int) -> None:
        """A window was planned just now, after this many firings in all."""
        began = perf_counter() - seconds
        plan = PlanRecord(self.record, began, seconds, firings - self.record.firings)
        self.record.planning_seconds += seconds
        self.record.firings = firings
        for profile in self.profiles:
            profile.plans.append(plan)

    def found_plan(self, seconds: float, firings: int) -> None:
        """The plan of an earlier call serves this one, after this search."""
        self.record.has_known_plan = True
        self.planned(seconds, firings)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Time in which recorded steps are run, not recorded."""
        began = perf_counter()
        try:
            yield
        finally:
            known = self.record.engine_seconds or 0.0
            self.record.engine_seconds = known + perf_counter() - began

    def ended(self, run: Runner) -> None:
        """All launches of the call were made; its memory can be told."""
        self.describe_all()
        if self.profiles:
            note_memory(run, self.record)

    def launch(
        self, run: Runner, step: PreparedLaunch, work: Callable[[PreparedLaunch], None]
    ) -> None:
        """Carry out a launch and record it, unless it fails. What it ran on is told later, if no
        run of its plan was profiled before.
        """
        record = self._record(run, step.launch, step.launch.rows)
        self._time(run, record, work, step)
        if not self.profiles:
            return
        self._add(record)
        if self.record.trail is not None:
            self.record.trail.add(Launched(record, step.launch, step.instances))
        if step.details is not None:
            record.details = step.details
            return
        self.waiting.append((record, run, step))
        if len(self.waiting) > MOST_WAITING:
            self.describe_all()

    def sent(self, copy: Copy) -> None:
        """Values were read, to be copied."""
        if self.record.trail is not None:
            self.record.trail.add(Sent(copy))

    def received(self, copy: Copy) -> None:
        """Values that were read were written."""
        if self.record.trail is not None:
            self.record.trail.add(Received(copy))

    def backward(
        self, run: Runner, launch: Launch, rows: int, work: Callable[..., None], *arguments: Any
    ) -> None:
        """Carry out the backward half of some rows of a launch and record it."""
        record = self._record(run, launch, rows)
        record.is_backward = True
        self._time(run, record, work, *arguments)
        if self.profiles:
            record.details = describe_backward(run, launch, rows)
            self._add(record)

    def _record(self, run: Runner, launch: Launch, rows: int) -> LaunchRecord:
        node = run.blocks[launch.block].node
        return LaunchRecord(self.record, node, rows, device_of(run, launch), 0.0)

    def _time(
        self, run: Runner, record: LaunchRecord, work: Callable[..., None], *arguments: Any
    ) -> None:
        """Carry out a launch, with a name if torch's own profiler looks on."""
        if torch_profiles():
            with torch.profiler.record_function(f"penstock {record.block}"):
                self._time_unnamed(record, work, *arguments)
        else:
            self._time_unnamed(record, work, *arguments)

    def _time_unnamed(
        self, record: LaunchRecord, work: Callable[..., None], *arguments: Any
    ) -> None:
        """Carry out a launch. What was built on its account is no part of its time."""
        built_before = building_time.seconds
        watch = Watch(record.device, self.clocks) if record.device.startswith("cuda") else None
        building_time.watch, began = watch, perf_counter()
        try:
            work(*arguments)
        finally:
            building_time.watch = None
            seconds, built = perf_counter() - began, building_time.seconds - built_before
            self._built(record.block, began, built)
        record.timing = record.host_seconds = seconds - built
        record.beginning = began + built
        if watch is not None:
            record.beginning, record.timing = watch.stop()

    def _built(self, block: str, began: float, seconds: float) -> None:
        if seconds > 0:
            self.record.building_seconds += seconds
            built = BuildRecord(self.record, block, began, seconds)
            for profile in self.profiles:
                profile.builds.append(built)

    def describe_all(self) -> None:
        """Tell what launches ran on that wait for it. Several threads may do so."""
        with suppress(IndexError):
            while True:
                record, run, step = self.waiting.popleft()
                record.details = step.details = describe(run, step.launch)

    def _add(self, event: LaunchRecord | ReadRecord) -> None:
        for profile in self.profiles:
            profile.events.append(event)

    @contextmanager
    def read(self, read: Read) -> Iterator[None]:
        """Time a read."""
        began = perf_counter()
        yield
        values = sum(map(slot_count, read.sources))
        self._add(ReadRecord(self.record, values, perf_counter() - began, began))

    @contextmanager
    def wait(self, device: str, reason: str) -> Iterator[None]:
        """Time in which the queue of a device stands still."""
        began = perf_counter()
        yield
        wait = WaitRecord(self.record, device, reason, began, perf_counter() - began)
        for profile in self.profiles:
            profile.waits.append(wait)
