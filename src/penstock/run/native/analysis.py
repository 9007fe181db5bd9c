"""Facts about scalar loops: which variables carry gradients, and what values depend on.

Dependence is found by the names that statements read. A branch or a loop that something depends on
counts with everything in it: the facts are used to save less, never to compute less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.passes.row_operations import FLOAT
from penstock.run.native.scalars import Assign, Atom, Choose, Repeat, Statement, Variable


def names_of(atoms: Iterable[Atom]) -> set[str]:
    """The names of the variables among atoms."""
    return {atom.name for atom in atoms if isinstance(atom, Variable)}


def defined(statements: Sequence[Statement]) -> Iterator[Variable]:
    """All variables that statements assign, also deep inside."""
    for statement in statements:
        match statement:
            case Assign(target=target):
                yield target
            case Choose(arms=arms, targets=targets):
                yield from targets
                yield from defined(arms[0])
                yield from defined(arms[1])
            case Repeat(carried=carried, test=test, body=body):
                yield from carried
                yield from defined(test)
                yield from defined(body)


def inner_loops(statements: Sequence[Statement]) -> Iterator[Repeat]:
    """All loops among statements, also deep inside."""
    for statement in statements:
        match statement:
            case Choose(arms=arms):
                yield from inner_loops((*arms[0], *arms[1]))
            case Repeat(test=test, body=body):
                yield statement
                yield from inner_loops((*test, *body))


def read(statement: Statement) -> set[str]:
    """All variables that a statement reads, also deep inside."""
    match statement:
        case Assign(operands=operands):
            return names_of(operands)
        case Choose(condition=condition, arms=arms, results=results):
            inside = (*arms[0], *arms[1])
            found = names_of((condition, *results[0], *results[1]))
        case Repeat(initial=initial, predicate=predicate, following=following):
            inside = (*statement.test, *statement.body)
            found = names_of((*initial, predicate, *following))
    return found.union(*map(read, inside)) if inside else found


def depended_on(statements: Sequence[Statement], wanted: set[str]) -> set[str]:
    """The variables that the wanted ones depend on, themselves among them."""
    found = set(wanted)
    for statement in reversed(statements):
        if any(variable.name in found for variable in defined([statement])):
            found |= read(statement)
    return found


def find_active(repeat: Repeat, wanted: set[str]) -> set[str]:
    """The floating-point variables through which gradients flow to the wanted ones."""
    active = set(wanted)
    count = -1
    while len(active) > count:
        count = len(active)
        _spread(repeat, active)
    return active


def _spread(statement: Statement, active: set[str]) -> None:
    match statement:
        case Assign(target=target, op=op, operands=operands):
            flowing = zip(operands, op.derivatives, strict=True)
            if any(rule is not None and names_of([x]) & active for x, rule in flowing):
                _mark(target, active)
        case Choose(arms=arms, targets=targets, results=results):
            for inner in (*arms[0], *arms[1]):
                _spread(inner, active)
            for target, *given in zip(targets, *results, strict=True):
                if names_of(given) & active:
                    _mark(target, active)
        case Repeat(carried=carried, initial=initial, following=following):
            for inner in (*statement.test, *statement.body):
                _spread(inner, active)
            for target, *given in zip(carried, initial, following, strict=True):
                if names_of(given) & active:
                    _mark(target, active)


def _mark(target: Variable, active: set[str]) -> None:
    if target.dtype in FLOAT:
        active.add(target.name)
