"""Records what runs, for the profiles that are active.

Profiles are found through a context variable when a call starts; the call then carries its recorder
along, also to threads that do not share the variable. Without a profile there is no recorder, and a
launch costs one test for None; where torch's own profiler is on, a recorder without profiles gives
launches their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from penstock.ir.graph import Graph
from penstock.ir.program import Program
from penstock.plan.schedule import Integers, Launch, Read, slot_count
from penstock.profiling.profile import Profile
from penstock.profiling.records import CallRecord, LaunchRecord, PlanRecord, ReadRecord, WaitRecord
from penstock.profiling.rows import Trail
from penstock.run.launch_records import describe, describe_backward, device_of, note_memory
from penstock.run.watches import Clocks, Timing, Watch, torch_profiles

if TYPE_CHECKING:
    from penstock.run.runner import Runner


_profiles: ContextVar[tuple[Profile, ...]] = ContextVar("profiles", default=())
_clocks: ContextVar[Clocks | None] = ContextVar("clocks", default=None)
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


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


class Built:
    """What has been spent on building by the whole process."""

    seconds = 0.0


def count_trace(*, is_hit: bool) -> None:
    """A program was looked up: found, or traced."""
    for profile in _profiles.get():
        profile.cache_hits += is_hit
        profile.traces += not is_hit


@contextmanager
def building() -> Iterator[None]:
    """Time spent inside is not the time of the launch that made it necessary."""
    watch = _watch.get()
    began = perf_counter()
    try:
        yield
    finally:
        Built.seconds += perf_counter() - began
        if watch is not None:
            watch.exclude(perf_counter() - began)


def note_retrace(name: str, reason: str) -> None:
    """A program that had been traced was traced again, for this reason."""
    for profile in _profiles.get():
        profile.retraces.append(f"{name}: {reason}")


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
        try:
            yield CallRecorder(self.profiles, self.clocks, record)
        finally:
            record.seconds = perf_counter() - record.began


def current_recorder() -> Recorder | None:
    """The recorder for calls made here; None where nobody looks."""
    profiles = _profiles.get()
    if profiles:
        return Recorder(profiles, _clocks.get() or {})
    return Recorder(()) if torch_profiles() else None


@contextmanager
def recorded_call(
    name: str, instances: int, graph: Graph | None = None, program: Program | None = None
) -> Iterator[CallRecorder | None]:
    """A call or scope that is recorded if somebody looks."""
    recorder = current_recorder()
    if recorder is None:
        yield None
        return
    with recorder.call(name, instances, graph, program) as call:
        yield call


#: From a device and a timing to the record of a launch.
Describe = Callable[[str, Timing], LaunchRecord]


@dataclass(frozen=True, slots=True)
class CallRecorder:
    """Records what one call does."""

    profiles: tuple[Profile, ...]
    clocks: Clocks
    record: CallRecord

    @property
    def checks_nan(self) -> bool:
        """Whether somebody wants to be told of the first NaN."""
        return any(profile.check_nan for profile in self.profiles)

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
        if self.profiles:
            note_memory(run, self.record)

    def launch(
        self, run: Runner, launch: Launch, instances: Integers
    ) -> AbstractContextManager[None]:
        """Time a launch and describe it."""
        return self._timed(run, launch, partial(self._describe, run, launch, instances))

    def backward(self, run: Runner, launch: Launch, rows: int) -> AbstractContextManager[None]:
        """Time the backward half of some rows of a launch and describe it."""
        described = partial(describe_backward, run, launch, rows, self.record)
        return self._timed(run, launch, described, ".backward")

    def _describe(
        self, run: Runner, launch: Launch, instances: Integers, device: str, timing: Timing
    ) -> LaunchRecord:
        record = describe(run, launch, self.record, device, timing)
        if self.record.trail is not None:
            self.record.trail.add(record, launch, instances)
        return record

    @contextmanager
    def _timed(
        self, run: Runner, launch: Launch, described: Describe, half: str = ""
    ) -> Iterator[None]:
        name = f"penstock {run.blocks[launch.block].name}{half}"
        named = torch.profiler.record_function(name) if torch_profiles() else nullcontext()
        if not self.profiles:
            with named:
                yield
            return
        device = device_of(run, launch)
        watch = Watch(device, self.clocks)
        token = _watch.set(watch)
        try:
            with named:
                yield
        finally:
            _watch.reset(token)
            self.record.building_seconds += watch.building_seconds
        self._add(described(device, watch.stop()))

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

    def _add(self, event: LaunchRecord | ReadRecord) -> None:
        for profile in self.profiles:
            profile.events.append(event)
