"""Random blocks and statements, drawn through hypothesis so that failing examples shrink.

A drawer has a number of statements to spend on one program; each form of statement is one method.
Every program ends: loops count down, and functions only call those that were finished before, or
their own group with a smaller first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import strategies as st

from penstock.testing.draw_expressions import ExpressionDrawer, sequences_in
from penstock.testing.expressions import (
    BOOL,
    ELEMENT_OF,
    INT,
    SEQUENCE_OF,
    SINGLE,
    Constant,
    Expression,
    Kind,
    Operation,
    Variable,
)
from penstock.testing.statements import (
    TRIPS,
    ArrayLoop,
    Block,
    Call,
    Cond,
    Fold,
    Let,
    MapEach,
    ReadElement,
    Scan,
    Statement,
    Switch,
    Variables,
    While,
)

#: How deep statements may nest.
_DEEPEST = 3

_ELEMENTS = tuple(SEQUENCE_OF)


@dataclass(frozen=True, slots=True)
class Signature:
    """What is known of a function before its body is drawn."""

    name: str
    parameters: Variables
    results: tuple[Kind, ...]
    #: Whether the first parameter counts down to the base case.
    is_recursive: bool


class StatementDrawer(ExpressionDrawer):
    """Draws the statements of one program."""

    def __init__(self, draw: st.DrawFn, size: int, shortest: int) -> None:
        super().__init__(draw)
        self._shortest = shortest
        #: How many statements may still be drawn.
        self.left = size
        #: The functions that are finished: anyone may call them.
        self.finished: list[Signature] = []
        #: The group that is being drawn; its functions are called with less than `countdown`.
        self.unfinished: list[Signature] = []
        self.countdown: Variable | None = None
        self._recursive_calls = 0

    def block(
        self, scope: Variables, kinds: Sequence[Kind], depth: int = _DEEPEST, least: int = 0
    ) -> Block:
        """Up to three statements and results of the given kinds."""
        statements = self.statements(scope, depth, least)
        scope = (*scope, *targets_of(statements))
        return Block(tuple(statements), self.expressions(kinds, scope))

    def statements(self, scope: Variables, depth: int, least: int = 0) -> list[Statement]:
        """Up to three statements, each of which may use what the ones before bound."""
        statements: list[Statement] = []
        most = min(3, self.left)
        while len(statements) < most and self.left > 0:
            if len(statements) >= least and not self.flip():
                break
            self.left -= 1
            statement = self._statement(scope, depth - 1)
            statements.append(statement)
            scope = (*scope, *statement.targets)
        return statements

    @contextmanager
    def types_only(self) -> Iterator[None]:
        """What is drawn inside may run on values without contents, where a sequence is empty."""
        before = self.has_contents
        self.has_contents = before and self._shortest > 0
        yield
        self.has_contents = before

    @contextmanager
    def recursion(self, group: list[Signature], countdown: Variable) -> Iterator[None]:
        """What is drawn inside may call the functions of the group, a few times."""
        self.unfinished, self.countdown, self._recursive_calls = group, countdown, 2
        yield
        self.unfinished, self.countdown, self._recursive_calls = [], None, 0

    def _statement(self, scope: Variables, depth: int) -> Statement:
        forms: list[Callable[[Variables, int], Statement]] = [self._let]
        if depth > 0:
            forms += [self._cond, self._while, self._switch]
            forms += [self._array_loop] * self.has_contents
        if depth > 0 and sequences_in(scope):
            forms += [self._map_each, self._scan, self._fold] * 2
        if sequences_in(scope) and self.has_contents:
            forms.append(self._read_element)
        if self._callable(scope):
            forms += [self._call] * 2
        return self.draw(st.sampled_from(forms))(scope, depth)

    def _let(self, scope: Variables, depth: int) -> Let:
        sequences = [variable.kind for variable in sequences_in(scope)]
        value = self.expression(self.draw(st.sampled_from([*SINGLE, *sequences])), scope)
        return Let((self.variable(value.kind),), value)

    def _cond(self, scope: Variables, depth: int) -> Cond:
        predicate = self.predicate(scope)
        parameters, operands, targets = self._branch_signature(scope)
        kinds = [target.kind for target in targets]
        first, second = (self.block((*scope, *parameters), kinds, depth) for _ in range(2))
        return Cond(targets, predicate, parameters, operands, (first, second))

    def _switch(self, scope: Variables, depth: int) -> Switch:
        index = self.expression(INT, scope)
        parameters, operands, targets = self._branch_signature(scope)
        kinds = [target.kind for target in targets]
        count = self.draw(st.integers(1, 4))
        branches = tuple(self.block((*scope, *parameters), kinds, depth) for _ in range(count))
        return Switch(targets, index, parameters, operands, branches)

    def _branch_signature(
        self, scope: Variables
    ) -> tuple[Variables, tuple[Expression, ...], Variables]:
        operands = self.expressions(self.kinds(SINGLE, 2, least=0), scope)
        parameters = self.variables([operand.kind for operand in operands])
        return parameters, operands, self.variables(self.kinds(SINGLE, 2))

    def _while(self, scope: Variables, depth: int) -> While:
        kinds = self.kinds(SINGLE, 3)
        initial = self.expressions(kinds, scope)
        state = self.variables(kinds)
        counter = None if self.flip() else self.variable(INT)
        count: Expression = Constant(self.draw(st.integers(0, TRIPS - 1)), INT)
        if counter:
            count = self.expression(INT, scope)
        inner = (*scope, *state) if counter is None else (*scope, counter, *state)
        simple = counter is not None and not self.flip()
        predicate = Constant(True, BOOL) if simple else self.predicate(inner)
        body = self.block(inner, kinds, depth)
        return While(self.variables(kinds), counter, count, state, initial, predicate, body)

    def _scan(self, scope: Variables, depth: int) -> Scan:
        kinds = self.kinds(SINGLE, 2)
        initial = self.expressions(kinds, scope)
        state, each = self.variables(kinds), self.each(scope)
        results = self.kinds(_ELEMENTS, 2, least=0)
        with self.types_only():
            body = self.block((*scope, *state, *each.elements), [*kinds, *results], depth)
        targets = self.variables([*kinds, *(SEQUENCE_OF[kind] for kind in results)])
        return Scan(targets, state, initial, each, body, self.flip())

    def _fold(self, scope: Variables, depth: int) -> Fold:
        kinds = self.kinds(SINGLE, 2)
        initial = self.expressions(kinds, scope)
        state, each = self.variables(kinds), self.each(scope)
        body = self.block((*scope, *state, *each.elements), kinds, depth)
        return Fold(self.variables(kinds), state, initial, each, body, self.flip())

    def _map_each(self, scope: Variables, depth: int) -> MapEach:
        each = self.each(scope)
        results = self.kinds(_ELEMENTS, 2)
        with self.types_only():
            body = self.block((*scope, *each.elements), results, depth)
        return MapEach(self.variables([SEQUENCE_OF[kind] for kind in results]), each, body)

    def _array_loop(self, scope: Variables, depth: int) -> ArrayLoop:
        kind = self.draw(st.sampled_from(_ELEMENTS))
        count, initial = self.expression(INT, scope), self.expression(kind, scope)
        index, previous = self.variable(INT), self.variable(kind)
        body = self.block((*scope, index, previous), [kind], depth)
        stacked = self.variable(SEQUENCE_OF[kind])
        targets = (stacked, self.variable(kind), self.variable(kind))
        position = self.expression(INT, scope)
        return ArrayLoop(targets, count, initial, index, previous, body, position)

    def _read_element(self, scope: Variables, depth: int) -> ReadElement:
        sequence = self.draw(st.sampled_from(sequences_in(scope)))
        kind = ELEMENT_OF[sequence.kind]
        index, default = self.expression(INT, scope), self.expression(kind, scope)
        return ReadElement((self.variable(kind),), sequence, index, default, self.flip())

    def _call(self, scope: Variables, depth: int) -> Call:
        return self.call(self.draw(st.sampled_from(self._callable(scope))), scope)

    def call(self, signature: Signature, scope: Variables) -> Call:
        """A call of a function; of an unfinished one, with a smaller first argument."""
        kinds = [parameter.kind for parameter in signature.parameters]
        if signature in self.unfinished and self.countdown:
            self._recursive_calls -= 1
            rule = self.draw(st.sampled_from(["one_less", "two_less"]))
            arguments = (Operation(rule, (self.countdown,)), *self.expressions(kinds[1:], scope))
        elif signature.is_recursive:
            depth = Operation("depth", (self.expression(INT, scope),))
            arguments = (depth, *self.expressions(kinds[1:], scope))
        else:
            arguments = self.expressions(kinds, scope)
        return Call(self.variables(signature.results), signature.name, arguments)

    def _callable(self, scope: Variables) -> list[Signature]:
        known = {variable.kind for variable in scope} | set(SINGLE)
        unfinished = self.unfinished if self._recursive_calls > 0 else []
        return [
            signature
            for signature in (*self.finished, *unfinished)
            if all(parameter.kind in known for parameter in signature.parameters)
        ]


def targets_of(statements: Sequence[Statement]) -> Variables:
    """What the statements bind, in order."""
    return tuple(target for statement in statements for target in statement.targets)
