"""The syntax of random programs: blocks of statements, functions, and one control-flow form each.

A statement binds its targets, variables that no other statement binds. A block may also read the
variables of the blocks around it; a function reads its parameters alone. Everything is frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from penstock.testing.expressions import Expression, Variable

Variables: TypeAlias = tuple[Variable, ...]
Expressions: TypeAlias = tuple[Expression, ...]

#: Loops run fewer times than this: a count is taken as the remainder.
TRIPS = 5


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order, and what they are for."""

    statements: tuple[Statement, ...]
    results: Expressions


@dataclass(frozen=True, slots=True)
class Let:
    """A value gets a name."""

    targets: Variables
    value: Expression


@dataclass(frozen=True, slots=True)
class Cond:
    """`cond`; the operands are called `parameters` in both branches."""

    targets: Variables
    predicate: Expression
    parameters: Variables
    operands: Expressions
    branches: tuple[Block, Block]


@dataclass(frozen=True, slots=True)
class Switch:
    """`switch` on the remainder of `index`."""

    targets: Variables
    index: Expression
    parameters: Variables
    operands: Expressions
    branches: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class While:
    """`while_loop` while the predicate holds, at most `count` times.

    Where there is a counter, it goes down to zero from the remainder of `count`; else `count` is a
    constant below `TRIPS` and becomes `maximum_iterations`.
    """

    targets: Variables
    counter: Variable | None
    count: Expression
    state: Variables
    initial: Expressions
    predicate: Expression
    body: Block


@dataclass(frozen=True, slots=True)
class Each:
    """The elements of sequences of one length, side by side."""

    elements: Variables
    sequences: Expressions


@dataclass(frozen=True, slots=True)
class Scan:
    """`scan`; the body returns the next state, then one result per remaining target."""

    targets: Variables
    state: Variables
    initial: Expressions
    each: Each
    body: Block
    reverse: bool


@dataclass(frozen=True, slots=True)
class Fold:
    """`foldl`, or `foldr` where `reverse`."""

    targets: Variables
    state: Variables
    initial: Expressions
    each: Each
    body: Block
    reverse: bool


@dataclass(frozen=True, slots=True)
class MapEach:
    """`map_fn`."""

    targets: Variables
    each: Each
    body: Block


@dataclass(frozen=True, slots=True)
class ArrayLoop:
    """A TensorArray that starts with `initial`; a loop makes each next element from the last.

    The targets are the stacked array, the element at the remainder of `position`, and the first
    element of the version from before the loop.
    """

    targets: tuple[Variable, Variable, Variable]
    count: Expression
    initial: Expression
    index: Variable
    previous: Variable
    body: Block
    position: Expression


@dataclass(frozen=True, slots=True)
class ReadElement:
    """The element at the remainder of `index`, else `default` where the sequence is empty."""

    targets: tuple[Variable]
    sequence: Variable
    index: Expression
    default: Expression
    through_array: bool


@dataclass(frozen=True, slots=True)
class Call:
    """The results of a function of the program."""

    targets: Variables
    function: str
    arguments: Expressions


Statement: TypeAlias = (
    Let | Cond | Switch | While | Scan | Fold | MapEach | ArrayLoop | ReadElement | Call
)
LOOPS = (While, Scan, Fold, MapEach, ArrayLoop)


@dataclass(frozen=True, slots=True)
class Function:
    """A block with a name and parameters."""

    name: str
    parameters: Variables
    body: Block


def blocks_of(statement: Statement) -> tuple[Block, ...]:
    """The blocks nested in a statement."""
    match statement:
        case Cond(branches=branches) | Switch(branches=branches):
            return branches
        case Let() | ReadElement() | Call():
            return ()
        case _:
            return (statement.body,)


def walk(block: Block) -> Iterator[Statement]:
    """Every statement of a block and of the blocks inside it, outer ones first."""
    for statement in block.statements:
        yield statement
        for inner in blocks_of(statement):
            yield from walk(inner)
