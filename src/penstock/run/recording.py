"""Records what runs, for the profiles that are active.

Profiles are found through a context variable when a call starts; the call then carries its recorder
along, also to threads that do not share the variable. Without a profile there is no recorder, and a
launch costs one test for None; where torch's own profiler is on, a recorder without profiles gives
launches their names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, Token
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
from penstock.run.launch_records import (
    describe,
    describe_backward,
    device_of,
    new_record,
    note_memory,
)
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
        recorder = CallRecorder(self.profiles, self.clocks, record)
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


#: Records a launch that has ended, from its device and timing.
Add = Callable[[str, Timing], None]

#: Launches of a call that wait for their description, at most.
MOST_WAITING = 256


@dataclass(frozen=True, slots=True)
class CallRecorder:
    """Records what one call does."""

    profiles: tuple[Profile, ...]
    clocks: Clocks
    record: CallRecord
    #: Descriptions that are still to be made: between launches there is no time for them.
    waiting: deque[Callable[[], None]] = field(default_factory=deque)

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
        self.describe_all()
        if self.profiles:
            note_memory(run, self.record)

    def launch(
        self, run: Runner, launch: Launch, instances: Integers
    ) -> AbstractContextManager[None]:
        """Time a launch; it is described when there is time for it."""

        def add(device: str, timing: Timing) -> None:
            record = new_record(run, launch, self.record, device, timing)
            self._add(record)
            if self.record.trail is not None:
                self.record.trail.add(record, launch, instances)
            self.waiting.append(partial(describe, record, run, launch))
            if len(self.waiting) > MOST_WAITING:
                self.describe_all()

        return self._timed(run, launch, add)

    def backward(self, run: Runner, launch: Launch, rows: int) -> AbstractContextManager[None]:
        """Time the backward half of some rows of a launch and describe it."""

        def add(device: str, timing: Timing) -> None:
            self._add(describe_backward(run, launch, rows, self.record, device, timing))

        return self._timed(run, launch, add, ".backward")

    def describe_all(self) -> None:
        """Describe the launches that wait for it. Several threads may do so."""
        with suppress(IndexError):
            while True:
                self.waiting.popleft()()

    def _timed(
        self, run: Runner, launch: Launch, add: Add, half: str = ""
    ) -> AbstractContextManager[None]:
        if torch_profiles():
            return self._named(run, launch, add, half)
        return TimedLaunch(self, device_of(run, launch), add) if self.profiles else nullcontext()

    @contextmanager
    def _named(self, run: Runner, launch: Launch, add: Add, half: str) -> Iterator[None]:
        """The same, with a name for torch's own profiler."""
        name = f"penstock {run.blocks[launch.block].name}{half}"
        timed = TimedLaunch(self, device_of(run, launch), add) if self.profiles else nullcontext()
        with timed, torch.profiler.record_function(name):
            yield

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


class TimedLaunch(AbstractContextManager[None]):
    """The time of one launch; it is not recorded if it fails."""

    __slots__ = ("_add", "_device", "_recorder", "_token", "_watch")

    def __init__(self, recorder: CallRecorder, device: str, add: Add) -> None:
        self._recorder, self._device, self._add = recorder, device, add

    def __enter__(self) -> None:
        self._watch = Watch(self._device, self._recorder.clocks)
        self._token: Token[Watch | None] = _watch.set(self._watch)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        timing = self._watch.stop()
        _watch.reset(self._token)
        self._recorder.record.building_seconds += self._watch.building_seconds
        if kind is None:
            self._add(self._device, timing)
