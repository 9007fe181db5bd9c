"""Expressions that may decide on traced values: `and`, `or`, `not`, conditional expressions,
comparisons, comprehensions; and calls, whose function may have to be converted too.

Each becomes a call of an operator that does what Python does, unless a value is traced. Operands
that Python may leave out are passed as functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from penstock.conversion.build import PREFIX, at, constant, load, no_arguments, operator, thunk
from penstock.conversion.names import bound

_COMPARISONS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


class Expressions(ast.NodeTransformer):
    """Rewrites the expressions of one function, in place."""

    def __init__(self, first_parameter: str | None, doubtful: set[ast.Name]) -> None:
        self._first_parameter = first_parameter
        self._doubtful = doubtful
        self._thunks = 0
        self._is_loop_test = False
        #: Variables that are assigned inside of operands.
        self.assigned: dict[str, None] = {}

    def loop_test(self, node: ast.expr) -> ast.expr:
        """The condition of a loop: sizes in its comparisons are values of the program."""
        self._is_loop_test = True
        try:
            return self.expression(node)
        finally:
            self._is_loop_test = False

    def expression(self, node: ast.expr) -> ast.expr:
        """One expression, converted."""
        converted: ast.expr = self.visit(node)
        return converted

    def later(self, node: ast.expr) -> ast.expr:
        """An expression as a function that evaluates it."""
        self._thunks += 1
        try:
            return thunk(self.expression(node))
        finally:
            self._thunks -= 1

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node in self._doubtful and isinstance(node.ctx, ast.Load):
            return at(operator("load", node, constant(node.id)), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            if self._first_parameter is not None:
                node.args = [at(load("__class__"), node), at(load(self._first_parameter), node)]
            return node
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        node.func = at(operator("callee", self.expression(node.func)), node.func)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        first, *others = node.values
        later = [self.later(value) for value in others]
        return at(operator(name, self.expression(first), *later), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.expression(node.operand)
        if isinstance(node.op, ast.Not):
            return at(operator("not_", operand), node)
        node.operand = operand
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test, body, orelse = self.expression(node.test), node.body, node.orelse
        return at(operator("if_exp", test, self.later(body), self.later(orelse)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        names = [_COMPARISONS[type(op)] for op in node.ops]
        if len(names) == 1:
            left, right = self.expression(node.left), self.expression(node.comparators[0])
            if names[0] in ("is", "is not") or (
                not self._is_loop_test and names[0] not in ("in", "not in")
            ):
                node.left, node.comparators = left, [right]
                return node
            return at(operator("compare", constant(names[0]), left, right), node)
        left = self.expression(node.left)
        second = self.expression(node.comparators[0])
        later = [self.later(value) for value in node.comparators[1:]]
        return at(operator("chain", constant(tuple(names)), left, second, *later), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and _may_be_number(node.slice):
            return at(operator("item", node.value, node.slice), node)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        value = self.expression(node.value)
        if not self._thunks:
            node.value = value
            return node
        self.assigned[node.target.id] = None
        return at(ast.Call(load(setter(node.target.id)), [value], []), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        outer = self._thunks, self._is_loop_test, self._first_parameter
        self._thunks, self._is_loop_test = 0, False
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.body = self.expression(node.body)
        self._thunks, self._is_loop_test, self._first_parameter = outer
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        return self._comprehension(node, "list_comp")

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        return self._comprehension(node, "generator")

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, name: str) -> ast.expr:
        generator = node.generators[0]
        element = _element_function(generator.target)
        if len(node.generators) > 1 or generator.is_async or element is None:
            self._thunks += 1
            self.generic_visit(node)
            self._thunks -= 1
            return node
        source = self.expression(generator.iter)
        self._thunks += 1
        parts = [element(self.expression(node.elt))]
        if generator.ifs:
            test = generator.ifs[0]
            if len(generator.ifs) > 1:
                test = at(ast.BoolOp(ast.And(), generator.ifs), generator.ifs[0])
            parts.append(element(self.expression(test)))
        self._thunks -= 1
        return at(operator(name, source, *parts), node)


def setter(name: str) -> str:
    """The function that assigns a variable from inside an operand."""
    return f"{PREFIX}assign_{name}"


def _element_function(target: ast.expr) -> Callable[[ast.expr], ast.expr] | None:
    """Makes an expression with the names of `target` a function of one element."""
    if isinstance(target, ast.Name):
        parameters = [ast.arg(target.id)]
    elif isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
        parameters = [ast.arg(name) for name in bound(target)]
        if len(parameters) != len(target.elts):
            return None
    else:
        return None
    is_tuple = isinstance(target, ast.Tuple)
    mark = ast.arg(f"{PREFIX}thunk")

    def make(body: ast.expr) -> ast.expr:
        inner: ast.expr = ast.Lambda(no_arguments(args=parameters, vararg=mark), body)
        if is_tuple:
            element = f"{PREFIX}element"
            parts = operator("unpack", load(element), constant(len(parameters)))
            spread = ast.Starred(parts, ast.Load())
            called = ast.Call(inner, [spread], [])
            inner = ast.Lambda(no_arguments(args=[ast.arg(element)], vararg=mark), called)
        return at(inner, body)

    return make


def _may_be_number(index: ast.expr) -> bool:
    """Whether an index may turn out to be one traced number."""
    return not isinstance(index, ast.Slice | ast.Tuple | ast.Constant | ast.UnaryOp)
