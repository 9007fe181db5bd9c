"""Structured programs: functions whose bodies hold torch calls, control flow and TensorArrays.

Everything here is frozen. A value is defined once, by a body's inputs or by one node; a nested body
may also read the values of the bodies around it. An operation is a small frozen record; its
operands are the node's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.ir.devices import Device
from penstock.ir.types import Type


@dataclass(frozen=True, slots=True)
class Source:
    """A line of user code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What one node or body input defines. Compared by identity; numbered for printing."""

    number: int
    type: Type

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True, slots=True)
class Operand:
    """The place of a node's input inside the argument template of a torch call."""

    index: int


@dataclass(frozen=True, slots=True)
class TorchCall:
    """One call of a torch function by its qualified name.

    `args` and `kwargs` are templates: nested tuples, lists and dicts frozen as tuples, constants,
    and `Operand`s. A node with several outputs returns them as the flattened tensors of the call's
    result.
    """

    name: str
    args: tuple[object, ...] = ()
    kwargs: tuple[tuple[str, object], ...] = ()
    #: Operands that are passed as Python ints (dynamic sizes), by index.
    sizes: frozenset[int] = frozenset()
    #: Where the program changes autocast itself: (kind of device, dtype or None for off) for each
    #: kind.
    autocast: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A Python number in the program; its type is the node's output type."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Captured:
    """A tensor that the program reads by reference: number `index` of its captures."""

    index: int


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dynamic dimension of the input, as int64."""

    dimension: int = 0


@dataclass(frozen=True, slots=True)
class AsSequence:
    """The input, its static leading dimension stored flattened, so that elements have slots."""


@dataclass(frozen=True, slots=True)
class Element:
    """(sequence, index) -> the element at that index; negative indices count from the end."""


@dataclass(frozen=True, slots=True)
class Branch:
    """(index) -> what the chosen body returns; of a `cond` body 0 is for false, body 1 for true."""

    bodies: tuple[Body, ...]
    is_cond: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """(initial values) -> final values: `body` runs while `condition` holds.

    Both take the carried values; the condition returns the predicate, the body the next values.
    """

    condition: Body
    body: Body
    maximum_iterations: int | None = None
    parallel_iterations: int | None = None
    #: How many iterations of the user's loop the body is.
    window: int = 1


@dataclass(frozen=True, slots=True)
class RowLoop:
    """(values) -> what `body` returns: loops of row-wise arithmetic, which each row runs by itself.

    The body is closed: it reads its inputs and nothing else. Its inputs are the values that the
    node reads, under their own names, so the insides of a loop stay what they were.
    """

    body: Body
    #: Whether it is a loop of any torch calls instead, which its device runs as a whole.
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """(arguments) -> results of the program's function of that name."""

    function: str


@dataclass(frozen=True, slots=True)
class ForEach:
    """(sequences of one length) -> one array per result of `body`, which takes one of each."""

    body: Body


@dataclass(frozen=True, slots=True)
class ArrayNew:
    """(size) -> an array with no element written yet."""

    dynamic_size: bool = False


@dataclass(frozen=True, slots=True)
class ArrayUnstack:
    """(sequence) -> an array of its elements."""


@dataclass(frozen=True, slots=True)
class ArrayRead:
    """(array, index) -> element."""


@dataclass(frozen=True, slots=True)
class ArrayWrite:
    """(array, index, element) -> the next version of the array."""


@dataclass(frozen=True, slots=True)
class ArrayStack:
    """(array) -> its elements as a sequence; every element must have been written."""


@dataclass(frozen=True, slots=True)
class ArraySize:
    """(array) -> its length as int64."""


@dataclass(frozen=True, slots=True)
class RandomKey:
    """() -> the int64 key of one random operation.

    It is a mix of seed, instance, call path, iterations and `site`, which is that of the node.
    """

    site: tuple[int, ...]


Operation: TypeAlias = (
    TorchCall
    | Constant
    | Captured
    | Size
    | AsSequence
    | Element
    | Branch
    | Loop
    | RowLoop
    | Call
    | ForEach
    | ArrayNew
    | ArrayUnstack
    | ArrayRead
    | ArrayWrite
    | ArrayStack
    | ArraySize
    | RandomKey
)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One step of a body."""

    operation: Operation
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    source: Source | None = None
    #: The place in its body, for random keys: (site, branch) of each branch around it that was
    #: decided while tracing, then its number among the random operations and the nodes that open
    #: a scope (calls, branches, loops, for-each) there; empty for all other nodes.
    site: tuple[int, ...] = ()
    #: Where the user wants it to run; None leaves it to `passes.place`.
    device: Device | None = None

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The bodies nested in this node; a closed one is the node's own business."""
        match self.operation:
            case Branch(bodies=bodies):
                return bodies
            case Loop(condition=condition, body=body):
                return (condition, body)
            case ForEach(body=body):
                return (body,)
            case _:
                return ()

    def with_bodies(self, bodies: Iterable[Body]) -> Node:
        """The node with these bodies in the places of its own."""
        match self.operation, tuple(bodies):
            case Branch(), made:
                return replace(self, operation=replace(self.operation, bodies=made))
            case Loop(), (condition, body):
                return replace(
                    self, operation=replace(self.operation, condition=condition, body=body)
                )
            case ForEach(), (body,):
                return replace(self, operation=ForEach(body))
            case _:
                return self


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A straight line of nodes with inputs and outputs."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    def walk(self) -> Iterator[Node]:
        """Every node of this body and of the bodies inside it, in order, outer nodes first."""
        for node in self.nodes:
            yield node
            for body in node.bodies:
                yield from body.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A named body that can be called, also by itself."""

    name: str
    body: Body
    source: Source | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Functions, the first called for every instance, and the types of what they capture."""

    functions: tuple[Function, ...]
    captures: tuple[Type, ...] = ()
    #: Names of captures for printing, such as "self.cell.weight".
    capture_names: tuple[str, ...] = ()

    @property
    def entry(self) -> Function:
        """The function that is called once per instance."""
        return self.functions[0]

    @property
    def highest_number(self) -> int:
        """The highest number of a value."""
        nodes = (node for function in self.functions for node in function.body.walk())
        return max((value.number for node in nodes for value in node.outputs), default=0)

    def function(self, name: str) -> Function:
        """The function of that name."""
        return next(function for function in self.functions if function.name == name)

    def __str__(self) -> str:
        from penstock.ir.printer import print_program

        return print_program(self)
