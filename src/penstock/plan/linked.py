"""A linked graph: what the machine follows when values arrive. Static; the machine holds what
changes.

A group is what arrives in one event, and knows all that its arrival sets off. A linked node knows
how to find its inputs and where its outputs go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.ir.graph import Context, Graph, Node, Wire
from penstock.plan.host_code import HostFunction

if TYPE_CHECKING:
    from penstock.plan.native.decode import Decoder
    from penstock.plan.native.program import NativeProgram


@dataclass(slots=True, eq=False)
class Group:
    """Wires of one context that arrive together."""

    number: int
    context: int
    wires: tuple[Wire, ...]
    #: (field, column) of the wires that rows must keep.
    host_stores: list[tuple[int, int]] = field(default_factory=list)
    slot_stores: list[tuple[int, int]] = field(default_factory=list)
    #: Whether several events may bring rows of this group within one firing: what it sets off is
    #: then queued.
    is_scattered: bool = True
    #: Whether it brings inputs that a row may have no use for, and that it must wait for all the
    #: same: it could not take them once it has ended.
    is_loose: bool = False
    inline: list[LinkedNode] = field(default_factory=list)
    queued: list[LinkedNode] = field(default_factory=list)
    counted: list[LinkedNode] = field(default_factory=list)
    #: (target group, fields of this group in the order of the target's wires)
    merges: list[tuple[Group, tuple[int, ...]]] = field(default_factory=list)
    #: (child column, parameter group, fields)
    arguments: list[tuple[int, Group, tuple[int, ...]]] = field(default_factory=list)
    #: Groups at each call site, with fields; by site.
    returns: dict[int, tuple[Group, tuple[int, ...]]] = field(default_factory=dict)
    next_values: list[tuple[Group, tuple[int, ...]]] = field(default_factory=list)
    exits: list[tuple[Group, tuple[int, ...]]] = field(default_factory=list)
    #: (position among the fork's outputs, field)
    joins: list[tuple[int, int]] = field(default_factory=list)
    #: (position among the entry's outputs, field)
    results: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Access:
    """How a node finds one of its inputs."""

    is_host: bool
    #: Field of the triggering group that brings it, for a node that runs at once.
    field: int | None = None
    #: Number of the graph input that it is.
    input: int | None = None
    #: Contexts to go up through, and the column there.
    above: tuple[int, ...] = ()
    column: int = -1


class TripCount(NamedTuple):
    """What bounds a loop, known when it is entered."""

    #: Which of the initial values is the counter.
    counter: int
    #: How the node that enters the loop finds the bound,
    bound: Access
    #: or the sequence whose length it is.
    sized: Wire | None


@dataclass(slots=True, eq=False)
class LinkedNode:
    """A node with what the machine needs to fire it."""

    node: Node
    number: int
    rank: int
    kind: str
    context: int
    #: Row of the context's pending counters, if it waits for several arrivals.
    counter: int | None = None
    waits: int = 1
    is_inline: bool = False
    is_data: bool = False
    #: Whether firing it may create rows.
    is_expanding: bool = False
    trigger: Group | None = None
    output: Group | None = None
    access: list[Access] = field(default_factory=list)
    function: HostFunction | None = None
    block: int = -1
    #: Place among the child columns: of a call the callee's row; of a loop how many iterations are
    #: running; of a fork, for each output, its array and how many elements are missing.
    child: int = -1
    #: Groups of a fork's outputs.
    outputs: list[Group] = field(default_factory=list)
    #: Whether its context is a loop's.
    is_in_loop: bool = False
    is_loop_switch: bool = False
    #: Of a node that enters a loop: what says how often it runs, if that is known.
    trip_count: TripCount | None = None
    #: Whether no other node of the same run reads the array that this node writes to.
    is_last_use: bool = False


@dataclass(slots=True, eq=False)
class Arm:
    """What happens when rows enter an arm."""

    #: Queued firings that a row of this arm waits for.
    todo: int = 0
    calls: list[LinkedNode] = field(default_factory=list)
    inline: list[LinkedNode] = field(default_factory=list)
    queued: list[LinkedNode] = field(default_factory=list)
    counted: list[LinkedNode] = field(default_factory=list)

    @property
    def is_passive(self) -> bool:
        """Whether entering the arm sets nothing off but calls."""
        return not (self.inline or self.queued or self.counted)


@dataclass(slots=True, eq=False)
class LinkedContext:
    """A context with its groups, arms and column layout."""

    context: Context
    arms: list[Arm]
    nodes: list[LinkedNode] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    host_dtypes: list[str] = field(default_factory=list)
    host_wires: list[Wire] = field(default_factory=list)
    slot_wires: list[Wire] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    children: int = 0
    #: Contexts around this one, nearest first.
    ancestors: list[int] = field(default_factory=list)
    #: The queued pseudo-node that activates arm 0 of new rows; None where that sets nothing off.
    start: LinkedNode | None = None
    inputs: list[Group] = field(default_factory=list)
    #: How many of these a row is made to wait for.
    loose: int = 0
    #: The enter or fork node of a loop or for-each.
    opener: LinkedNode | None = None


@dataclass(slots=True, eq=False)
class Linked:
    """A graph, linked."""

    graph: Graph
    default_dtype: str
    contexts: list[LinkedContext] = field(default_factory=list)
    #: Nodes with blocks; a launch names its block by the position here.
    blocks: list[Node] = field(default_factory=list)
    #: The call nodes of each callee, by site.
    calls: dict[int, dict[int, LinkedNode]] = field(default_factory=dict)
    #: Column of each stored wire.
    columns: dict[Wire, int] = field(default_factory=dict)
    #: A slot wire of each arena that can be known beforehand, in the order of their numbers.
    placed: list[Wire] = field(default_factory=list)
    #: The graph assembled for native code, with what reads its records; or why there is none.
    #: Made when it is first asked for.
    native: tuple[NativeProgram, Decoder] | str | None = None
