"""A profile: everything that was recorded between its begin and its end, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.profiling.explanation import explain
from penstock.profiling.records import CallRecord, LaunchRecord, ReadRecord
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

    def __repr__(self) -> str:
        return f"<profile: {len(self.calls)} calls, {len(self.launches)} launches>"
