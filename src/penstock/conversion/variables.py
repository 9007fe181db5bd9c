"""The variables of a function under conversion: which of them blocks share, and how operators reach
them.

Variables that blocks assign get a value, if only that they have none, at the start of the function,
so that the blocks can declare them `nonlocal`. An operator looks at the variables of its statement
and sets them through two functions, and is told what it must know of each.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from penstock.conversion.build import (
    PREFIX,
    at,
    constant,
    function,
    load,
    operator,
    store,
    tuple_of,
)
from penstock.conversion.escapes import Escapes
from penstock.conversion.expressions import setter
from penstock.conversion.names import bound, declared, mutated
from penstock.conversion.prepare import prepared
from penstock.conversion.source import parameters
from penstock.conversion.syntax import handler_names


class Variables:
    """The variables of one function, which is taken apart as far as to know them."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self._node = node
        self._words = declared(node.body)
        self._parameters = parameters(node.args)
        escapes = Escapes()
        #: The statements, without what leaves them early.
        self._body = escapes.lower(prepared(node.body))
        #: Variables that hold returned values, whose flags say so.
        self._returned = escapes.returned
        self._local = {*self._parameters, *bound(self._body)} - set(self._words)
        self._handled = handler_names(self._body)
        #: Variables that blocks assign: they get a value, if only that they have none, at once.
        self._shared: dict[str, None] = {}
        self._count = 0

    def _variables(
        self, code: Sequence[ast.AST], live: frozenset[str], once: Collection[str] = ()
    ) -> tuple[list[str], ast.expr]:
        """The variables that code assigns, and what the operator must know of them."""
        changed = mutated(code)
        assigned = bound(code)
        found = {**assigned, **dict.fromkeys(changed)}
        names = [name for name in found if name in self._local and name not in self._handled]
        self._shared.update(dict.fromkeys(names))
        facts = []
        for name in names:
            marks = "l" if name in live or name in changed else ""
            marks += "r" if name in self._returned else ""
            marks += "m" if name in changed else ""
            marks += "g" if changed.get(name) else ""
            marks += "p" if name in self._parameters and name not in assigned else ""
            marks += "o" if name in once else ""
            facts.append((name, marks))
        return names, constant(tuple(facts))

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _function(
        self,
        name: str,
        body: Sequence[ast.stmt],
        names: Sequence[str],
        place: ast.AST,
        parameter: str | None = None,
    ) -> ast.FunctionDef:
        return function(
            f"{PREFIX}{name}",
            body,
            place,
            parameter=parameter,
            declared=self._declarations(names, bound(body)),
        )

    def _declarations(self, names: Sequence[str], assigned: dict[str, None]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        if names:
            made.append(ast.Nonlocal(list(names)))
        for name, word in self._words.items():
            if name in assigned:
                made.append(ast.Global([name]) if word == "global" else ast.Nonlocal([name]))
        return made

    def _access(self, number: int, names: Sequence[str], place: ast.AST) -> list[ast.stmt]:
        """Functions that look at the variables of a statement, and set them."""
        values = f"{PREFIX}values"
        look = ast.Return(tuple_of([load(name) for name in names], ast.Load()))
        change: ast.stmt = ast.Pass()
        if names:
            targets = tuple_of([store(name) for name in names], ast.Store())
            change = ast.Assign([targets], load(values))
        declared_names: list[ast.stmt] = [ast.Nonlocal(list(names))] if names else []
        return [
            function(f"{PREFIX}get_{number}", [look], place),
            function(
                f"{PREFIX}set_{number}", [change], place, parameter=values, declared=declared_names
            ),
        ]

    def _unset(self, name: str) -> ast.stmt:
        return at(ast.Assign([store(name)], operator("unset", constant(name))), self._node)

    def _setter(self, name: str) -> ast.stmt:
        value = f"{PREFIX}value"
        self._shared[name] = None
        body = [ast.Assign([store(name)], load(value)), ast.Return(load(value))]
        return function(
            setter(name), body, self._node, parameter=value, declared=[ast.Nonlocal([name])]
        )


def accessors(number: int) -> list[ast.expr]:
    """The two functions that reach the variables of a statement."""
    return [load(f"{PREFIX}get_{number}"), load(f"{PREFIX}set_{number}")]
