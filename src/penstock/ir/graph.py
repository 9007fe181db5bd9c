"""Graphs of primitives: what the machine runs and what a partitioner cuts.

A graph has one context per function, loop body and for-each body. A context is split into arms: arm
0 runs for every row, any other arm runs for the rows that a Switch sent there. A Switch therefore
routes rows, and with a row all values it can see. A wire carries one value of a row: on the host
(control), as a slot (data), or the same for all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from penstock.ir.devices import Device
from penstock.ir.program import Node as ProgramNode
from penstock.ir.program import Source, Value
from penstock.ir.types import Type

if TYPE_CHECKING:
    from penstock.passes.partition import Partition


class Home(StrEnum):
    """Where the value of a wire lives."""

    HOST = "host"
    SLOT = "slot"
    UNIFORM = "uniform"


@dataclass(frozen=True, slots=True, eq=False)
class Wire:
    """One value of the rows of a context. Compared by identity; numbered for printing."""

    number: int
    type: Type
    home: Home
    context: int
    arm: int
    #: The number of the entry's input that this wire always equals: looked up by instance, never
    #: stored per row.
    input: int | None = None

    @property
    def is_of_row(self) -> bool:
        """Whether the value belongs to a row, and not to the instance or to the whole call."""
        return self.input is None and self.home is not Home.UNIFORM

    def __str__(self) -> str:
        return f"{self.home[0]}{self.number}"


@dataclass(frozen=True, slots=True)
class HostStep:
    """One operation of a host computation; operands are wires or Python numbers."""

    name: str
    operands: tuple[Wire | int | float | bool, ...]
    output: Wire
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """Host operations fused into one numpy function."""

    steps: tuple[HostStep, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A straight line of torch calls, launched once for all ready rows.

    `parameters` and `results` are the program values that stand for the node's inputs and outputs.
    A flat block works element by element along the leading dimension of its sequences, and runs
    over all elements of all rows at once.
    """

    name: str
    nodes: tuple[ProgramNode, ...]
    parameters: tuple[Value, ...]
    results: tuple[Value, ...]
    is_flat: bool = False
    #: Parameters that are passed as Python ints, with the symbol of the dimension they measure, if
    #: it is one.
    sizes: Mapping[int, str | None] = field(default_factory=dict)
    #: Where it runs; None in a program that nobody has placed.
    device: Device | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """slot -> host: the runner reads the value back."""


@dataclass(frozen=True, slots=True)
class Upload:
    """host -> slot: the value gets a slot, because it meets data."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Outer values enter an arm under new names."""


@dataclass(frozen=True, slots=True)
class Switch:
    """(index) sends each row to one of the arms."""

    arms: tuple[int, ...]
    is_cond: bool


@dataclass(frozen=True, slots=True)
class Merge:
    """One input per arm of a Switch; the live one passes."""


@dataclass(frozen=True, slots=True)
class Call:
    """A new row of the callee for each row; arguments go to its parameters, results come back."""

    callee: int
    site: int
    #: What the caller's random key is mixed with to get the callee's.
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Enter:
    """Iteration 0 of a loop's context; the outputs are what Exit sends back.

    The first `carried` inputs are the initial values; the others are read by the loop and must be
    there first.
    """

    loop: int
    carried: int


@dataclass(frozen=True, slots=True)
class Fork:
    """One row of the context per element; the outputs are arrays of the results (Join).

    The first input is a sequence, whose length counts; then `elements` sequences; the others are
    read by the body.
    """

    each: int
    elements: int


@dataclass(frozen=True, slots=True)
class Primitive:
    """A slot-moving operation of the program (elements, sizes, arrays), by its record's name."""

    name: str
    dimension: int = 0
    dynamic_size: bool = False


#: What random keys in the body of a loop or for-each are mixed with after the iteration or element,
#: and keys in a loop's condition are not; no site has this number.
BODY = -1


@dataclass(frozen=True, slots=True)
class Key:
    """() -> the key of a random operation, from the row's own key and the sites along the arms."""

    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """(value) -> the other devices that it may be needed on; only in parts of a graph."""

    targets: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Recv:
    """() -> values that another device makes and this one may need; only in parts of a graph."""

    source: Device


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """() -> slots whose values stay on another device; only in parts of a graph."""

    source: Device


Operation: TypeAlias = (
    Compute
    | Block
    | Read
    | Upload
    | Pass
    | Switch
    | Merge
    | Call
    | Enter
    | Fork
    | Primitive
    | Key
    | Send
    | Recv
    | Elsewhere
)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One primitive in an arm of a context."""

    operation: Operation
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    context: int
    arm: int
    source: Source | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The rows of one function, loop or for-each body.

    `inputs` are the parameters, carried values or elements. `outputs` are the results of a function
    or for-each body; of a loop, what the next iteration carries. A loop's Switch sends rows to
    (exit arm, body arm); `exits` are the carried values as the exit arm sees them.
    """

    index: int
    kind: str
    name: str
    parent: int | None
    #: The arm around each arm; None for arm 0.
    arms: tuple[int | None, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    exits: tuple[Wire, ...] = ()
    maximum_iterations: int | None = None
    parallel_iterations: int | None = None
    source: Source | None = None
    #: What the parent's random key is mixed with, before the iteration or element.
    key_path: tuple[int, ...] = ()
    #: How many iterations of the user's loop are one of this loop.
    window: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Uniform:
    """A wire that is the same for all rows: a constant, a capture, or a torch call on such wires.

    It is computed at most once per call.
    """

    wire: Wire
    node: ProgramNode
    #: Which output of the node it is.
    output: int
    inputs: tuple[Wire, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A value that every row finds through its instance: an argument, or a uniform value that meets
    rows.

    `number` counts the entry's arguments; of a shared value it is None and `uniform` is the wire
    that computes it.
    """

    type: Type
    number: int | None
    uniform: Wire | None
    host: Wire | None
    slot: Wire | None


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Contexts, the first of which is the entry, and uniform computations."""

    contexts: tuple[Context, ...]
    uniforms: tuple[Uniform, ...]
    #: `Wire.input` counts these.
    inputs: tuple[Input, ...]
    #: Whether random keys are needed.
    has_random: bool = False

    @property
    def nodes(self) -> Iterator[Node]:
        """Those of all contexts."""
        return (node for context in self.contexts for node in context.nodes)

    def __str__(self) -> str:
        from penstock.ir.graph_printer import print_graph

        return print_graph(self)

    def partition(self) -> Partition:
        """The part of the graph that each device runs, with Send and Recv where edges are cut."""
        from penstock.passes.partition import partition_graph

        return partition_graph(self)
