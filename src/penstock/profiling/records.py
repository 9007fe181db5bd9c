"""What a run leaves behind for a profile: calls, launches, reads, plans and waits, as plain data.

Records are made by the runner and only read here. They keep the graph that was run, so that
explanations can name loops, recursions and source lines; they keep no tensor. A launch on a device
is timed there, and its seconds are looked up when they are first asked for. Points in time are
those of `time.perf_counter`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.ir.graph import Block, Graph, Node
from penstock.ir.program import Program
from penstock.ir.types import TensorType
from penstock.profiling.rows import Trail


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call or map of a program, or one scope of recorded steps. All seconds are the host's."""

    name: str
    instances: int
    #: None for a scope of recorded steps.
    graph: Graph | None = None
    #: From the start of the call to its end.
    seconds: float = 0.0
    #: Inside the planner.
    planning_seconds: float = 0.0
    #: Making batched forms of blocks, when they are launched for the first time.
    building_seconds: float = 0.0
    #: Nodes that the machine fired to make the plan.
    firings: int = 0
    #: Whether the plan of an earlier call was run again.
    has_known_plan: bool = False
    #: Of a scope of recorded steps: planning, building and running them. None for other calls.
    engine_seconds: float | None = None
    #: What to tell about it: calls of a scope that were not recorded, what became of saved values.
    notes: list[str] = field(default_factory=list)
    began: float = 0.0
    #: What the graph was made from.
    program: Program | None = None
    #: Bytes of the values of all rows, and those held for a backward pass, when it was over.
    arena_bytes: int = 0
    saved_bytes: int = 0
    #: The most that torch has had allocated on each GPU of the call, up to its end.
    peak_bytes: dict[str, int] = field(default_factory=dict)
    #: The rows of its first instance; None where another call of the graph has them.
    trail: Trail | None = None

    @property
    def recording_seconds(self) -> float:
        """The user's own code, and recording what it does."""
        return 0.0 if self.engine_seconds is None else self.seconds - self.engine_seconds

    @property
    def running_seconds(self) -> float:
        """All but recording, planning and building."""
        prepared = self.recording_seconds + self.planning_seconds + self.building_seconds
        return self.seconds - prepared


class LaunchDetails(NamedTuple):
    """What a launch ran on. The same for every run of a plan, so runs of a plan share it."""

    #: The shape of each operand, rows first; () for a size.
    shapes: tuple[tuple[int, ...], ...] = ()
    #: Where each operand came from: "view" or "gather" of an arena, "host", "shared" or "size".
    sources: tuple[str, ...] = ()
    gathered_bytes: int = 0
    #: Bytes of its results.
    written_bytes: int = 0
    #: Operations on whose account the rows ran one by one.
    unbatched: tuple[str, ...] = ()
    #: How much of its sequences was padding; None where it was launched for rows of one size.
    padding: float | None = None
    #: What keeps the block from being padded; empty where nothing does.
    obstacle: str = ""


#: Of a launch that has not been described yet.
UNKNOWN = LaunchDetails()


@dataclass(slots=True, eq=False)
class LaunchRecord:
    """One launch of a block."""

    call: CallRecord
    #: The node of the graph that was fired.
    node: Node
    rows: int
    device: str
    #: Seconds, or how to find them out.
    timing: float | Callable[[], float] = field(repr=False)
    #: When it began, on its device, or how to find that out.
    beginning: float | Callable[[], float] = field(default=0.0, repr=False)
    #: What the host has spent on it; all of it for a CPU.
    host_seconds: float = 0.0
    details: LaunchDetails = UNKNOWN
    #: Whether it is the backward half of the block.
    is_backward: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each operand, rows first; () for a size."""
        return self.details.shapes

    @property
    def sources(self) -> tuple[str, ...]:
        """Where each operand came from: "view" or "gather", "host", "shared" or "size"."""
        return self.details.sources

    @property
    def gathered_bytes(self) -> int:
        """Bytes that were copied together for its operands."""
        return self.details.gathered_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of its results."""
        return self.details.written_bytes

    @property
    def unbatched(self) -> tuple[str, ...]:
        """Operations on whose account the rows ran one by one."""
        return self.details.unbatched

    @property
    def padding(self) -> float | None:
        """How much of its sequences was padding; None where rows were of one size."""
        return self.details.padding

    @property
    def obstacle(self) -> str:
        """What keeps the block from being padded; empty where nothing does."""
        return self.details.obstacle

    @property
    def seconds(self) -> float:
        """Gathering, running and writing: on the host for a CPU, on the device for a GPU."""
        if not isinstance(self.timing, float):
            self.timing = self.timing()
        return self.timing

    @property
    def began(self) -> float:
        """When it began on its device."""
        if not isinstance(self.beginning, float):
            self.beginning = self.beginning()
        return self.beginning

    @property
    def block(self) -> str:
        """The name of the block; its backward half has `.backward` after it."""
        return f"{self.operation.name}.backward" if self.is_backward else self.operation.name

    @property
    def operation(self) -> Block:
        """The block itself."""
        assert isinstance(self.node.operation, Block)
        return self.node.operation

    @property
    def is_view(self) -> bool:
        """Whether no operand had to be copied together."""
        return "gather" not in self.sources

    @property
    def kind(self) -> str:
        """One of "plain", "flat" (over elements of sequences), "mixing" (a dynamic dimension)."""
        if self.operation.is_flat:
            return "flat"
        types = [wire.type for wire in self.node.inputs]
        is_mixing = any(isinstance(kind, TensorType) and kind.is_dynamic for kind in types)
        return "mixing" if is_mixing or self.operation.sizes else "plain"


@dataclass(slots=True, eq=False)
class ReadRecord:
    """One read of computed values back to the host, for all rows that waited."""

    call: CallRecord
    values: int
    seconds: float
    began: float = 0.0


@dataclass(slots=True, eq=False)
class PlanRecord:
    """One stretch of planning: a window of instructions, or the search for a known plan."""

    call: CallRecord
    began: float
    seconds: float
    #: Nodes that were fired in it.
    firings: int


@dataclass(slots=True, eq=False)
class BuildRecord:
    """Making the batched form of a block, for its first launch of a kind."""

    call: CallRecord
    block: str
    began: float
    seconds: float


@dataclass(slots=True, eq=False)
class WaitRecord:
    """A queue stood still: for rows of another device, or for earlier iterations to end."""

    call: CallRecord
    device: str
    reason: str
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """A map that ran as several calls, one after the other."""

    name: str
    instances: int
    groups: int
    reason: str
