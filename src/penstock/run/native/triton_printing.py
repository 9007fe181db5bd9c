"""Scalar statements as Triton: a program runs one row, so branches and loops are the row's own.

Triton has no `break` and no `return` inside a loop: a loop asks `alive`, which a fault or the host
makes false. What a branch defines ends with it, so where the adjoint will read it, it is defined
before. Operators in which Triton differs from torch are written as calls: division by rounding to
nearest, whole division and remainder toward minus infinity, negation that keeps the sign of zero.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.passes.row_operations import FLOAT
from penstock.passes.row_types import Number
from penstock.run.native.adjoint import RecordingPrinter, by_dtype, is_active
from penstock.run.native.printing import Printer
from penstock.run.native.scalars import Assign, Atom, Choose, Repeat, Statement, Variable

#: Triton's names of dtypes.
DTYPES = {
    "bool": "tl.int1",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "float32": "tl.float32",
    "float64": "tl.float64",
}

#: Functions of expressions that are not libdevice's by the same name.
_FUNCTIONS = {"abs": "tl.abs", "sqrt": "libdevice.sqrt_rn"}
#: Operators that are calls.
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Div: "libdevice.div_rn",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "floor_remainder",
    ast.Pow: "libdevice.pow",
}


def number(value: Number, dtype: str) -> str:
    """A number of a dtype, exactly: Triton takes a bare one for float32."""
    if dtype in FLOAT:
        exact = float(value)
        text = repr(exact) if abs(exact) < float("inf") else f'float("{exact}")'
    else:
        text = repr(bool(value) if dtype == "bool" else int(value))
    return f"tl.full((), {text}, {DTYPES[dtype]})"


class _Translator(ast.NodeTransformer):
    """Turns an expression of the table into Triton."""

    def __init__(self, computes: str) -> None:
        self.computes = computes

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Constructors and functions."""
        if not isinstance(node.func, ast.Name) or node.func.id == "float":
            return node  # a number that is Triton already
        (argument,) = node.args
        if node.func.id != "T":
            name = _FUNCTIONS.get(node.func.id, f"libdevice.{node.func.id}")
            return _call(name, self.visit(argument))
        try:
            return _parsed(number(ast.literal_eval(argument), self.computes))
        except ValueError:  # no literal
            return _call("tl.cast", self.visit(argument), _parsed(DTYPES[self.computes]))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Operators that mean something else in Triton."""
        left, right = self.visit(node.left), self.visit(node.right)
        name = _OPERATORS.get(type(node.op))
        return _call(name, left, right) if name else ast.BinOp(left, node.op, right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Triton subtracts from zero, which is no negation of zero."""
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return _call("tl.where", operand, _parsed(number(0, "bool")), _parsed(_TRUE))
        if isinstance(node.op, ast.USub) and self.computes in FLOAT:
            return ast.BinOp(operand, ast.Mult(), _parsed(number(-1, self.computes)))
        return ast.UnaryOp(node.op, operand)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Both sides are computed."""
        joined, *others = map(self.visit, node.values)
        for other in others:
            sign = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
            joined = ast.BinOp(joined, sign, other)
        return joined  # type: ignore[no-any-return]

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Truth values are ordered as numbers; one bit is a signed number to Triton."""
        sides = [self.visit(node.left), *map(self.visit, node.comparators)]
        is_ordered = not isinstance(node.ops[0], ast.Eq | ast.NotEq)
        if self.computes == "bool" and is_ordered:
            sides = [_call("tl.cast", side, _parsed(DTYPES["int32"])) for side in sides]
        return ast.Compare(sides[0], node.ops, sides[1:])

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Both sides are computed."""
        parts = (node.test, node.body, node.orelse)
        return _call("tl.where", *map(self.visit, parts))


_TRUE = number(1, "bool")


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_parsed(name), list(arguments), [])


class TritonPrinter(Printer):
    """Prints what a row does."""

    YES = _TRUE
    NO = number(0, "bool")

    def number(self, value: Number, dtype: str) -> str:
        """A number of a dtype."""
        return number(value, dtype)

    def cast(self, expression: str, dtype: str) -> str:
        """A value as one of a dtype."""
        return f"tl.cast({expression}, {DTYPES[dtype]})"

    def expand(self, template: str, computes: str, operands: Sequence[Atom], **names: str) -> str:
        """An expression of the table on these operands."""
        text = template.format(*map(self.text_of, operands), **names)
        made = _Translator(computes).visit(_parsed(text))
        return ast.unparse(ast.fix_missing_locations(made))

    def is_true(self, atom: Atom) -> str:
        """A condition."""
        text = self.text_of(atom)
        return text if atom.dtype == "bool" else f"({text} != 0)"

    def load(self, array: str, place: str) -> str:
        """An element of an array."""
        return f"tl.load({array} + ({place}))"

    def store(self, array: str, place: str, value: str) -> None:
        """Write an element of an array."""
        self.add(f"tl.store({array} + ({place}), {value})")

    def begin_row(self) -> None:
        """What comes before all else."""
        self.add("row = tl.cast(tl.program_id(0), tl.int64)")
        self.add("left = tl.full((), PULSE, tl.int32)")
        self.add(f"alive = {self.YES}")

    def refuse_zero(self, divisor: Atom, dividend: Atom) -> None:
        """Leave a report and end the row where a divisor is zero."""
        with self.indented(f"if ({self.text_of(divisor)} == 0) & alive:"):
            self.store("words", "1", "1")
            self.store("lines", "row", f"{len(self.sources) + 1}")
            self.store("facts", "row", self.text_of(dividend))
            self.add(f"alive = {self.NO}")

    def repeat(self, statement: Repeat) -> None:
        """A loop: `trips` counts its iterations."""
        trips, goes = f"trips{statement.number}", f"goes{statement.number}"
        self.fill(statement.carried, statement.initial)
        self.add(f"{trips} = {number(0, 'int64')}")
        self.add(f"{goes} = alive")
        with self.indented(f"while {goes}:"):
            self.all(statement.test)
            self.add(f"{goes} = {self.is_true(statement.predicate)} & alive")
            if statement.maximum is not None:
                self.add(f"{goes} = {goes} & ({trips} < {statement.maximum})")
            with self.indented(f"if {goes}:"):
                self.begin_iteration(statement)
                self.add(f"{trips} += 1")
                self.pulse()
                self.all(statement.body)
                self.fill(statement.carried, statement.following)
                self.end_iteration(statement)

    def end_iteration(self, statement: Repeat) -> None:
        """What is counted of an iteration."""

    def pulse(self) -> None:
        """Look whether the host wants the row to end, once in a while."""
        self.add("left -= 1")
        with self.indented("if left < 0:"):
            self.add("left = tl.full((), PULSE, tl.int32)")
            self.add("alive = alive & (tl.load(words, volatile=True) == 0)")

    @contextmanager
    def counted(self, number: int) -> Iterator[None]:
        """Lines that are run as often as a loop had iterations."""
        with self.indented(f"while (trips{number} > 0) & alive:"):
            self.add(f"trips{number} -= 1")
            yield


class TritonTapingPrinter(TritonPrinter):
    """Prints the outermost loop so that it leaves a frame for each iteration."""

    def __init__(self, frame: Sequence[Variable]) -> None:
        super().__init__(checks=False)
        self.frame = by_dtype(frame)

    def begin_iteration(self, statement: Repeat) -> None:
        """Write the frame of an iteration."""
        if statement.number == 1:
            for dtype, variables in self.frame.items():
                for place, variable in enumerate(variables):
                    where = f"position * {len(variables)} + {place}"
                    self.store(f"tape_{dtype}", where, variable.name)
            self.add("position += 1")


class TritonCountingPrinter(TritonPrinter):
    """Prints loops so that `most1` is how many frames the adjoint will have on its stacks at most:
    those of all inner loops of an iteration, and of what is inside of one of them.
    """

    def __init__(self, active: set[str]) -> None:
        super().__init__()
        self.active = active
        #: The loops around, innermost last.
        self.around: list[int] = []

    def repeat(self, statement: Repeat) -> None:
        """A loop, counted where gradients flow through it."""
        number = statement.number
        self.add(f"most{number} = tl.full((), 0, tl.int64)")
        self.around.append(number)
        super().repeat(statement)
        self.around.pop()
        if self.around and is_active(statement, self.active):
            outer = self.around[-1]
            self.add(f"frames{outer} += trips{number}")
            self.add(f"deepest{outer} = tl.maximum(deepest{outer}, most{number})")

    def begin_iteration(self, statement: Repeat) -> None:
        """Nothing is counted yet."""
        for name in ("frames", "deepest"):
            self.add(f"{name}{statement.number} = tl.full((), 0, tl.int64)")

    def end_iteration(self, statement: Repeat) -> None:
        """Remember the most."""
        k = statement.number
        self.add(f"most{k} = tl.maximum(most{k}, frames{k} + deepest{k})")


class TritonRecordingPrinter(RecordingPrinter, TritonPrinter):
    """Prints statements so that loops with cotangents leave their carried values on stacks."""

    def make_room(self, dtype: str, count: int) -> None:
        """There is room: it was counted."""

    def begin_pops(self) -> None:
        """One thread has pushed, all will read."""
        self.add("tl.debug_barrier()")

    def choose(self, statement: Choose) -> None:
        """A branch; what its arms define is read again when they are reversed."""
        for arm in statement.arms:
            for variable in _left_behind(arm):
                self.add(f"{variable.name} = {number(0, variable.dtype)}")
        super().choose(statement)


def _left_behind(statements: Sequence[Statement]) -> Iterator[Variable]:
    """What statements define besides the bodies of loops, which are run again."""
    for statement in statements:
        match statement:
            case Assign(target=target):
                yield target
            case Choose(arms=arms, targets=targets):
                yield from targets
                yield from _left_behind((*arms[0], *arms[1]))
            case Repeat(carried=carried, number=loop):
                yield from carried
                yield Variable(f"trips{loop}", "int64")
