"""A profile: everything that was recorded between its begin and its end, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike

from penstock.ir.graph import Graph
from penstock.profiling.chrome_trace import write_chrome_trace
from penstock.profiling.explanation import explain
from penstock.profiling.records import (
    BuildRecord,
    CallRecord,
    LaunchRecord,
    PlanRecord,
    ReadRecord,
    SplitRecord,
    WaitRecord,
)
from penstock.profiling.summary import summarise


@dataclass(slots=True, eq=False)
class Profile:
    """What ran inside `ps.profile()`. Complete when the scope has ended."""

    calls: list[CallRecord] = field(default_factory=list)
    #: Launches and reads as they happened.
    events: list[LaunchRecord | ReadRecord] = field(default_factory=list)
    #: Programs that had to be traced, and calls that found theirs.
    traces: int = 0
    cache_hits: int = 0
    #: Whether the first NaN is an error.
    check_nan: bool = False
    #: Stretches of planning, and times in which queues of devices stood still.
    plans: list[PlanRecord] = field(default_factory=list)
    waits: list[WaitRecord] = field(default_factory=list)
    #: Batched forms of blocks that were made.
    builds: list[BuildRecord] = field(default_factory=list)
    #: For each program that was traced again, its name and what had changed.
    retraces: list[str] = field(default_factory=list)
    #: Maps whose instances could not all run together.
    splits: list[SplitRecord] = field(default_factory=list)
    #: The first call of each graph; None stands for scopes of recorded steps.
    first_calls: dict[Graph | None, CallRecord] = field(default_factory=dict)

    def add_call(self, call: CallRecord) -> bool:
        """A call has begun; whether it is the first one of its graph."""
        self.calls.append(call)
        return self.first_calls.setdefault(call.graph, call) is call

    @property
    def plan_hits(self) -> int:
        """Calls that ran the plan of an earlier call again."""
        return sum(call.has_known_plan for call in self.calls)

    @property
    def launches(self) -> list[LaunchRecord]:
        """The launches, in order of execution."""
        return [event for event in self.events if isinstance(event, LaunchRecord)]

    @property
    def reads(self) -> list[ReadRecord]:
        """The reads of computed values, in order of execution."""
        return [event for event in self.events if isinstance(event, ReadRecord)]

    def summary(self) -> str:
        """A table of the blocks, longest first, under the totals."""
        return summarise(self)

    def explain(self) -> str:
        """In words: which blocks ran narrow, and what kept them from running wider."""
        return explain(self)

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write what happened when, as a file that Perfetto and chrome://tracing open."""
        write_chrome_trace(self, path)

    def save_html(self, path: str | PathLike[str]) -> None:
        """Write one page that needs no network: programs, graphs, the schedule in time, and the
        rows of an instance coloured by launch. Needs the extra `view`.
        """
        from penstock.profiling.view.page import write_page

        write_page(self, path)

    def __repr__(self) -> str:
        return f"<profile: {len(self.calls)} calls, {len(self.launches)} launches>"
