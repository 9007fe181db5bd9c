"""Random programs run by plain Python: `if`, `while`, `for` and recursion over torch values.

This is the reference that every other way to run is compared with; it uses nothing of the rest of
the package. Programs that take too long, or whose predicates hang on the last bits of a float, are
refused: they say nothing about the other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from penstock.testing.expressions import (
    ELEMENT_OF,
    INT,
    RULES,
    WIDTH,
    Constant,
    Expression,
    Kind,
    Operation,
    Variable,
    compiled,
)
from penstock.testing.statements import (
    TRIPS,
    ArrayLoop,
    Block,
    Call,
    Cond,
    Each,
    Fold,
    Function,
    Let,
    MapEach,
    ReadElement,
    Scan,
    Statement,
    Switch,
    Variables,
    While,
)

Values: TypeAlias = dict[Variable, Tensor]

#: Closer to its threshold than this, a float comparison may come out either way.
MARGIN = 1e-6

#: How many operations and statements one run may take.
LONGEST_RUN = 4000


class UnsuitableError(Exception):
    """The program takes too long, or a predicate of it is too close to its threshold."""


class PlainRun:
    """One run of one program for one instance."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = {function.name: function for function in functions}
        #: How many operations and statements have run so far.
        self._steps = 0

    def call(self, name: str, arguments: Sequence[Tensor]) -> list[Tensor]:
        """What the function of that name returns."""
        function = self._functions[name]
        return self._block(function.body, _bound(function.parameters, arguments))

    def _block(self, block: Block, values: Values) -> list[Tensor]:
        values = dict(values)
        for statement in block.statements:
            self._count_step()
            run: Callable[..., Sequence[Tensor]] = getattr(self, _METHODS[type(statement)])
            values |= _bound(statement.targets, run(statement, values))
        return self._evaluate_all(block.results, values)

    def _evaluate(self, expression: Expression, values: Values) -> Tensor:
        match expression:
            case Variable():
                return values[expression]
            case Constant():
                return expression.tensor()
            case Operation(rule=name):
                self._count_step()
                rule = RULES[name]
                arguments = self._evaluate_all(expression.arguments, values)
                if rule.margin and compiled(rule.margin)(*arguments).abs() < MARGIN:
                    raise UnsuitableError("a predicate is too close to its threshold")
                return compiled(rule.text)(*arguments)

    def _evaluate_all(self, expressions: Sequence[Expression], values: Values) -> list[Tensor]:
        return [self._evaluate(expression, values) for expression in expressions]

    def _number(self, expression: Expression, values: Values) -> int:
        return int(self._evaluate(expression, values).item())

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > LONGEST_RUN:
            raise UnsuitableError("the run takes too many steps")

    def _let(self, let: Let, values: Values) -> list[Tensor]:
        return [self._evaluate(let.value, values)]

    def _cond(self, cond: Cond, values: Values) -> list[Tensor]:
        branch = cond.branches[0 if self._evaluate(cond.predicate, values).item() else 1]
        operands = self._evaluate_all(cond.operands, values)
        return self._block(branch, values | _bound(cond.parameters, operands))

    def _switch(self, switch: Switch, values: Values) -> list[Tensor]:
        branch = switch.branches[self._number(switch.index, values) % len(switch.branches)]
        operands = self._evaluate_all(switch.operands, values)
        return self._block(branch, values | _bound(switch.parameters, operands))

    def _while(self, loop: While, values: Values) -> list[Tensor]:
        count = self._number(loop.count, values) % TRIPS
        inner = values | _bound(loop.state, self._evaluate_all(loop.initial, values))
        while count > 0:
            if loop.counter:
                inner[loop.counter] = torch.tensor(count)
            if not self._evaluate(loop.predicate, inner).item():
                break
            inner |= _bound(loop.state, self._block(loop.body, inner))
            count -= 1
        return [inner[variable] for variable in loop.state]

    def _scan(self, scan: Scan, values: Values) -> list[Tensor]:
        inner = values | _bound(scan.state, self._evaluate_all(scan.initial, values))
        rows = []
        for elements in self._elements(scan.each, values, scan.reverse):
            results = self._block(scan.body, inner | elements)
            inner |= _bound(scan.state, results[: len(scan.state)])
            rows.append(results[len(scan.state) :])
        states = [inner[variable] for variable in scan.state]
        rows = rows[::-1] if scan.reverse else rows
        return states + _stacked(rows, scan.targets[len(states) :])

    def _fold(self, fold: Fold, values: Values) -> list[Tensor]:
        inner = values | _bound(fold.state, self._evaluate_all(fold.initial, values))
        for elements in self._elements(fold.each, values, fold.reverse):
            inner |= _bound(fold.state, self._block(fold.body, inner | elements))
        return [inner[variable] for variable in fold.state]

    def _map_each(self, mapping: MapEach, values: Values) -> list[Tensor]:
        rows = [
            self._block(mapping.body, values | elements)
            for elements in self._elements(mapping.each, values)
        ]
        return _stacked(rows, mapping.targets)

    def _elements(self, each: Each, values: Values, reverse: bool = False) -> Iterator[Values]:
        sequences = self._evaluate_all(each.sequences, values)
        rows = list(zip(*sequences, strict=True))
        for row in reversed(rows) if reverse else rows:
            yield _bound(each.elements, row)

    def _array_loop(self, loop: ArrayLoop, values: Values) -> list[Tensor]:
        elements = [self._evaluate(loop.initial, values)]
        for index in range(self._number(loop.count, values) % TRIPS):
            inner = {loop.index: torch.tensor(index), loop.previous: elements[-1]}
            elements += self._block(loop.body, values | inner)
        position = self._number(loop.position, values) % len(elements)
        return [torch.stack(elements), elements[position], elements[0]]

    def _read_element(self, read: ReadElement, values: Values) -> list[Tensor]:
        sequence = values[read.sequence]
        if len(sequence) == 0:
            return [self._evaluate(read.default, values)]
        return [sequence[self._number(read.index, values) % len(sequence)]]

    def _call(self, call: Call, values: Values) -> list[Tensor]:
        return self.call(call.function, self._evaluate_all(call.arguments, values))


_METHODS: dict[type[Statement], str] = {
    Let: "_let",
    Cond: "_cond",
    Switch: "_switch",
    While: "_while",
    Scan: "_scan",
    Fold: "_fold",
    MapEach: "_map_each",
    ArrayLoop: "_array_loop",
    ReadElement: "_read_element",
    Call: "_call",
}


def _bound(variables: Variables, values: Sequence[Tensor]) -> Values:
    return dict(zip(variables, values, strict=True))


def _stacked(rows: list[Any], targets: Variables) -> list[Tensor]:
    if not rows:
        return [_empty(ELEMENT_OF[target.kind]) for target in targets]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _empty(element: Kind) -> Tensor:
    if element is INT:
        return torch.empty(0, dtype=torch.int64)
    return torch.empty(0, WIDTH, dtype=torch.float64)
