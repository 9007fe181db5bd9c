"""Hypothesis strategies for random programs and for instances to run them on.

Small programs come first, so that a failing example shrinks to a few lines.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from penstock.testing.draw_statements import Signature, StatementDrawer, targets_of
from penstock.testing.expressions import (
    BOOL,
    FLOAT,
    INT,
    INTS,
    SINGLE,
    VECTOR,
    VECTORS,
    WIDTH,
    Kind,
    Operation,
)
from penstock.testing.programs import Program
from penstock.testing.statements import Block, Cond, Expressions, Function

#: The length of the longest sequence in an instance.
LONGEST = 5

_SEQUENCES = (VECTORS, INTS)

#: The sizes of groups of functions that call each other; 0 for one that does not call itself.
_GROUPS = (0, 1, 2)


@st.composite
def programs(draw: st.DrawFn, max_size: int = 12) -> Program:
    """Programs of up to `max_size` statements, and a few more for what recursion needs."""
    # A sequence that may be empty asks bodies for their types, where nothing can be read.
    shortest = draw(st.sampled_from([0, 1]))
    drawer = StatementDrawer(draw, max_size, shortest)
    functions: list[Function] = []
    for group in draw(st.lists(st.sampled_from(_GROUPS), max_size=2)):
        functions += _draw_group(drawer, group, len(functions))
    inputs = drawer.variables([INT, FLOAT, VECTORS, *drawer.kinds((*SINGLE, *_SEQUENCES), 3)])
    drawer.left = max(drawer.left, 3)
    statements = drawer.statements(inputs, depth=4, least=1)
    bound = targets_of(statements)
    returned = draw(st.lists(st.sampled_from(bound), min_size=1, max_size=3, unique=True))
    results: Expressions = tuple(returned)
    if drawer.flip():
        results += drawer.expressions(drawer.kinds(SINGLE, 1), (*inputs, *bound))
    entry = Function("program", inputs, Block(tuple(statements), results))
    return Program(tuple(functions), entry, shortest)


def _draw_group(drawer: StatementDrawer, size: int, made: int) -> list[Function]:
    """A function that does not call itself, or a group of functions that all do."""
    kinds = [INT] * bool(size) + [FLOAT, *drawer.kinds((*SINGLE, VECTORS), 2, least=0)]
    signatures = [
        Signature(
            name=f"f{made + number + 1}",
            parameters=drawer.variables(kinds),
            results=tuple(drawer.kinds(SINGLE, 2)),
            is_recursive=size > 0,
        )
        for number in range(max(size, 1))
    ]
    with drawer.types_only():
        functions = [_draw_function(drawer, signature, signatures) for signature in signatures]
    drawer.finished += signatures
    return functions


def _draw_function(
    drawer: StatementDrawer, signature: Signature, group: list[Signature]
) -> Function:
    parameters, results = signature.parameters, signature.results
    if not signature.is_recursive:
        return Function(signature.name, parameters, drawer.block(parameters, results))
    base = drawer.block(parameters, results, depth=2)
    step = _draw_step(drawer, signature, group)
    countdown, targets = parameters[0], drawer.variables(results)
    if drawer.flip():
        choice = Cond(targets, Operation("is_positive", (countdown,)), (), (), (step, base))
    else:
        choice = Cond(targets, Operation("is_done", (countdown,)), (), (), (base, step))
    return Function(signature.name, parameters, Block((choice,), targets))


def _draw_step(drawer: StatementDrawer, signature: Signature, group: list[Signature]) -> Block:
    """What a recursive function does above its base case: call the next of its group, and more."""
    parameters = signature.parameters
    follower = group[(group.index(signature) + 1) % len(group)]
    with drawer.recursion(group, parameters[0]):
        call = drawer.call(follower, parameters)
        rest = drawer.block((*parameters, *call.targets), signature.results, depth=2)
    return Block((call, *rest.statements), rest.results)


@st.composite
def instances(draw: st.DrawFn, program: Program, count: int) -> list[tuple[Tensor, ...]]:
    """`count` tuples of arguments for the program; sequences differ in length between them."""
    kinds = [parameter.kind for parameter in program.entry.parameters]
    numbers = st.tuples(*(_numbers(kind, program.shortest) for kind in kinds))
    return [tuple(map(_tensor, kinds, draw(numbers))) for _ in range(count)]


#: Floats that halves and products of a few steps keep exact.
_floats = st.integers(-8, 8).map(lambda quarters: quarters / 4)
_vectors = st.lists(_floats, min_size=WIDTH, max_size=WIDTH)
_ints = st.integers(-6, 6)


def _numbers(kind: Kind, shortest: int) -> st.SearchStrategy[Any]:
    strategies: dict[Kind, st.SearchStrategy[Any]] = {
        INT: _ints,
        BOOL: st.booleans(),
        FLOAT: _floats,
        VECTOR: _vectors,
        INTS: st.lists(_ints, min_size=shortest, max_size=LONGEST),
        VECTORS: st.lists(_vectors, min_size=shortest, max_size=LONGEST),
    }
    return strategies[kind]


def _tensor(kind: Kind, value: Any) -> Tensor:
    if kind in (INT, BOOL, INTS):
        return torch.tensor(value, dtype=torch.bool if kind is BOOL else torch.int64)
    tensor = torch.tensor(value, dtype=torch.float64)
    return tensor.reshape(-1, WIDTH) if kind is VECTORS else tensor
