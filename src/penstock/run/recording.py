"""Records what runs, for the profiles that are active.

Profiles are found through a context variable when a call starts; the call then carries its recorder
along, also to threads that do not share the variable. Without a profile there is no recorder, and a
launch costs one test for None. Launches on a GPU are timed by events that are read when somebody
asks, so that recording never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from penstock.ir.graph import Graph
from penstock.plan.schedule import Hosted, Launch, Operand, Picks, Read, Shared, Sized, Span
from penstock.profiling.profile import Profile
from penstock.profiling.records import CallRecord, LaunchRecord, ReadRecord

if TYPE_CHECKING:
    from penstock.run.arenas import Arena
    from penstock.run.runner import Runner


class Watch:
    """Times one launch: by the host's clock, or by events on its GPU."""

    def __init__(self, device: str) -> None:
        self.building_seconds = 0.0
        self._began = perf_counter()
        self._stream = (
            torch.cuda.current_stream(torch.device(device)) if device.startswith("cuda") else None
        )
        self._start = self._event()

    def exclude(self, seconds: float) -> None:
        """Do not count the last `seconds`, which were spent on building."""
        self.building_seconds += seconds
        self._began += seconds
        self._start = self._event()

    def stop(self) -> float | Callable[[], float]:
        """The seconds since the start, or how to find them out later."""
        start, end = self._start, self._event()
        if start is None or end is None:
            return perf_counter() - self._began

        def elapsed() -> float:
            end.synchronize()
            milliseconds: float = start.elapsed_time(end)
            return milliseconds / 1e3

        return elapsed

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


_profiles: ContextVar[tuple[Profile, ...]] = ContextVar("profiles", default=())
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def profiling(*, check_nan: bool = False) -> Iterator[Profile]:
    """Record all calls made inside, also for the profiles around."""
    profile = Profile(check_nan=check_nan)
    token = _profiles.set((*_profiles.get(), profile))
    try:
        yield profile
    finally:
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


@dataclass(frozen=True, slots=True)
class Recorder:
    """The profiles that were active at one place; can be kept and used on other threads."""

    profiles: tuple[Profile, ...]

    @contextmanager
    def call(self, name: str, instances: int, graph: Graph | None = None) -> Iterator[CallRecorder]:
        """Record one call of a program, or one scope of recorded steps, which has no graph."""
        record = CallRecord(name, instances, graph)
        for profile in self.profiles:
            profile.calls.append(record)
        began = perf_counter()
        try:
            yield CallRecorder(self.profiles, record)
        finally:
            record.seconds = perf_counter() - began


def current_recorder() -> Recorder | None:
    """The recorder for calls made here; None where no profile is active."""
    profiles = _profiles.get()
    return Recorder(profiles) if profiles else None


@contextmanager
def recorded_call(
    name: str, instances: int, graph: Graph | None = None
) -> Iterator[CallRecorder | None]:
    """A call or scope that is recorded if a profile is active."""
    recorder = current_recorder()
    if recorder is None:
        yield None
        return
    with recorder.call(name, instances, graph) as call:
        yield call


#: From a device and a timing to the record of a launch.
Describe = Callable[[str, float | Callable[[], float]], LaunchRecord]


@dataclass(frozen=True, slots=True)
class CallRecorder:
    """Records what one call does."""

    profiles: tuple[Profile, ...]
    record: CallRecord

    @property
    def checks_nan(self) -> bool:
        """Whether somebody wants to be told of the first NaN."""
        return any(profile.check_nan for profile in self.profiles)

    def planned(self, seconds: float, firings: int) -> None:
        """A window was planned, after this many firings in all."""
        self.record.planning_seconds += seconds
        self.record.firings = firings

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

    def launch(self, run: Runner, launch: Launch) -> AbstractContextManager[None]:
        """Time a launch and describe it."""
        return self._timed(run, launch, partial(_describe, run, launch, self.record))

    def backward(self, run: Runner, launch: Launch, rows: int) -> AbstractContextManager[None]:
        """Time the backward half of some rows of a launch and describe it."""
        describe = partial(_describe_backward, run, launch, rows, self.record)
        return self._timed(run, launch, describe, ".backward")

    @contextmanager
    def _timed(
        self, run: Runner, launch: Launch, describe: Describe, half: str = ""
    ) -> Iterator[None]:
        name = run.blocks[launch.block].name + half
        device = _device(run, launch)
        watch = Watch(device)
        token = _watch.set(watch)
        try:
            with torch.profiler.record_function(f"penstock {name}"):
                yield
        finally:
            _watch.reset(token)
            self.record.building_seconds += watch.building_seconds
        self._add(describe(device, watch.stop()))

    @contextmanager
    def read(self, read: Read) -> Iterator[None]:
        """Time a read."""
        began = perf_counter()
        yield
        values = sum(_count(source) for source in read.sources)
        self._add(ReadRecord(self.record, values, perf_counter() - began))

    def _add(self, event: LaunchRecord | ReadRecord) -> None:
        for profile in self.profiles:
            profile.events.append(event)


def _describe(
    run: Runner, launch: Launch, call: CallRecord, device: str, timing: float | Callable[[], float]
) -> LaunchRecord:
    block = run.blocks[launch.block]
    operands = [_operand(run, operand, launch.rows) for operand in launch.operands]
    shapes = tuple(shape for shape, _, _ in operands)
    return LaunchRecord(
        call,
        block.node,
        launch.rows,
        shapes,
        tuple(source for _, source, _ in operands),
        device,
        sum(size for _, _, size in operands),
        block.unbatched,
        timing,
        padding=block.padding_share(launch, shapes),
        obstacle=block.obstacle,
    )


def _describe_backward(
    run: Runner,
    launch: Launch,
    rows: int,
    call: CallRecord,
    device: str,
    timing: float | Callable[[], float],
) -> LaunchRecord:
    """The operands of a backward half are the cotangents of the results."""
    node = run.blocks[launch.block].node
    kinds = [kind for kind, _ in run.extents()]
    shapes = tuple((rows, *kinds[target.arena].shape) for target in launch.targets)
    sources = ("gather",) * len(shapes)
    return LaunchRecord(call, node, rows, shapes, sources, device, 0, (), timing, is_backward=True)


def _operand(run: Runner, operand: Operand, rows: int) -> tuple[tuple[int, ...], str, int]:
    """The shape of an operand, where it comes from, and the bytes gathered for it."""
    if isinstance(operand, Sized):
        return (), "size", 0
    if isinstance(operand, Shared):
        return tuple(run.uniform(operand.wire).shape), "shared", 0
    if isinstance(operand, Hosted):
        return operand.values.shape, "host", 0
    arena = run.arena(operand.arena)
    count, inner = _count(operand), arena.kind.shape
    shape = (count, *inner) if operand.length is None else (rows, operand.length, *inner)
    if _is_view(arena, operand):
        return shape, "view", 0
    return shape, "gather", count * int(torch.Size(inner).numel()) * arena.dtype.itemsize


def _is_view(arena: Arena, source: Span | Picks) -> bool:
    """Whether the slots are consecutive in one chunk."""
    if isinstance(source, Picks):
        return False
    end = source.start + source.count
    chunks = zip(arena.starts, arena.chunks, strict=True)
    return not source.count or any(
        start <= source.start and end <= start + chunk.shape[0] for start, chunk in chunks
    )


def _count(source: Span | Picks) -> int:
    return source.count if isinstance(source, Span) else len(source.slots)


def _device(run: Runner, launch: Launch) -> str:
    """The device that the launch was placed on, or else that of what it writes."""
    placed = run.blocks[launch.block].block.device
    if placed is not None and placed.name is not None:
        return placed.name
    extents = run.extents()
    return next((extents[target.arena][0].device for target in launch.targets), "cpu")
