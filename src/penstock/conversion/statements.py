"""Branches and loops as calls: each block becomes a function inside the user's, and an operator of
the runtime decides which of them to run, and how often.

Blocks share the variables of the user's function (`nonlocal`). The operator gets the variables that
the statement assigns, a way to look at them and to set them, and which of them are read later.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from penstock.conversion.build import PREFIX, at, constant, copied, load, operator, store, thunk
from penstock.conversion.expressions import Expressions
from penstock.conversion.flow import Definedness, Liveness
from penstock.conversion.names import appended_once, bound, read
from penstock.conversion.syntax import (
    is_convertible,
    is_guard,
    is_path,
    makes_container,
    opts_out,
    own_statements,
    returning,
    targets,
)
from penstock.conversion.variables import Variables, accessors


def convert_function(node: ast.FunctionDef) -> ast.FunctionDef:
    """The function with its control flow as calls; the tree is changed in place."""
    return FunctionConverter(node).convert()


class FunctionConverter(Variables):
    """Converts one function; nested ones get converters of their own."""

    def __init__(self, node: ast.FunctionDef) -> None:
        super().__init__(node)
        self._live = Liveness(self._body).live
        first = self._parameters[0] if self._parameters else None
        doubtful = Definedness(self._body, [*self._parameters, *self._words]).doubtful
        self._expressions = Expressions(first, doubtful)

    def convert(self) -> ast.FunctionDef:
        """The converted function."""
        body = self._block(self._body)
        node = self._node
        first = [self._unset(name) for name in self._shared if name not in self._parameters]
        setters = [self._setter(name) for name in self._expressions.assigned]
        inner = [
            at(getattr(ast, word.capitalize())([name]), node) for name, word in self._words.items()
        ]
        node.body = [*inner, *first, *setters, *body] or [at(ast.Pass(), node)]
        node.returns = None
        return node

    def _block(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [made for statement in block for made in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        match node:
            case ast.Global() | ast.Nonlocal():
                return []
            case ast.If():
                return self._if(node)
            case ast.While():
                return self._while(node)
            case ast.For():
                return self._for(node)
            case ast.With():
                node.items = [self._expressions.visit(item) for item in node.items]
                node.body = self._block(node.body)
                return [node]
            case ast.Try():
                return [self._try(node)]
            case ast.Match():
                node.subject = self._expressions.expression(node.subject)
                for case in node.cases:
                    case.body = self._block(case.body)
                return [node]
            case ast.FunctionDef():
                return [*self._check_written([node.name], node), self._nested(node)]
            case ast.ClassDef() | ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
                return [node]
        return self._simple(node)

    def _simple(self, node: ast.stmt) -> list[ast.stmt]:
        checks = self._check_written(bound(node), node)
        checks += [check for target in targets(node) for check in self._check_changed(target)]
        match node:
            case ast.AugAssign(target=ast.Name(id=name)):
                value = operator(
                    "augmented",
                    constant(type(node.op).__name__),
                    load(name),
                    self._expressions.expression(node.value),
                )
                return [*checks, at(ast.Assign([store(name)], value), node)]
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name)) as target]):
                if name in self._local and not isinstance(target.slice, ast.Slice | ast.Tuple):
                    visit = self._expressions.expression
                    parts = [load(name), visit(target.slice), visit(node.value)]
                    value = operator("set_item", *parts)
                    self._shared[name] = None
                    return [*checks, at(ast.Assign([store(name)], value), node)]
            case ast.Delete():
                return [*checks, *self._delete(node)]
            case ast.Assert():
                return self._assert(node)
            case ast.Raise():
                checks.append(at(ast.Expr(operator("raises")), node))
        is_container = isinstance(node, ast.Assign) and makes_container(node.value)
        self._expressions.generic_visit(node)
        if is_container:
            assert isinstance(node, ast.Assign)
            node.value = at(operator("fresh", node.value), node.value)
        return [*checks, node]

    def _assert(self, node: ast.Assert) -> list[ast.stmt]:
        text = constant(ast.unparse(node.test))
        access, tied = self._tied(node)
        test = self._expressions.expression(node.test)
        message = self._expressions.later(node.msg) if node.msg else constant(None)
        return [*access, at(ast.Expr(operator("assert_", test, message, text, *tied)), node)]

    def _guard(self, node: ast.If) -> list[ast.stmt]:
        """`if test: raise error`, which a run can check like an assertion."""
        (leave,) = node.body
        assert isinstance(leave, ast.Raise)
        assert leave.exc is not None
        text = constant(ast.unparse(node.test))
        access, tied = self._tied(node)
        test = self._expressions.expression(node.test)
        error = self._expressions.later(copied(leave.exc))
        place = _line_of(node, test)
        fails = at(operator("fails", test, error, text, *tied), place)
        node.test, node.body = fails, self._simple(leave)
        return [*access, node]

    def _tied(self, node: ast.Assert | ast.If) -> tuple[list[ast.stmt], list[ast.expr]]:
        """Access to the variables that are read after a check; those it reads come first."""
        names = [name for name in sorted(self._live[node]) if name in self._local]
        names = [name for name in names if name not in self._handled]
        tested = read(node.test)
        self._shared.update(dict.fromkeys(names))
        facts = constant(tuple((name, "t" if name in tested else "") for name in names))
        number = self._next()
        return self._access(number, names, node.test), [*accessors(number), facts]

    def _delete(self, node: ast.Delete) -> list[ast.stmt]:
        kept = [target for target in node.targets if not isinstance(target, ast.Name)]
        names = list(bound(node))
        self._shared.update(dict.fromkeys(name for name in names if name in self._local))
        unset = [at(self._unset(name), node) for name in names if name in self._local]
        return unset + ([at(ast.Delete(kept), node)] if kept else [])

    def _if(self, node: ast.If) -> list[ast.stmt]:
        if is_guard(node):
            return self._guard(node)
        chooses_value = any(isinstance(n, ast.Return) for n in own_statements(node))
        live = self._live[node]
        blocks = [node.body, node.orelse]
        names, facts = self._variables([*node.body, *node.orelse], live)
        if chooses_value:
            blocks = [returning(block, node) for block in blocks]
        test = self._expressions.expression(node.test)
        place = _line_of(node, test)
        number = self._next()
        made = []
        for word, block in zip(("then", "else"), blocks, strict=True):
            body = self._block(block) or [at(ast.Pass(), node)]
            made.append(self._function(f"{word}_{number}", body, names, place))
        access = self._access(number, names, place)
        arms = [load(f"{PREFIX}{word}_{number}") for word in ("then", "else")]
        name = "if_return" if chooses_value else "if_stmt"
        called = operator(name, test, *arms, *accessors(number), facts)
        statement: ast.stmt = ast.Return(called) if chooses_value else ast.Expr(called)
        return [*made, *access, at(statement, place)]

    def _while(self, node: ast.While) -> list[ast.stmt]:
        names, facts = self._variables([node.test, *node.body], self._live[node])
        test = self._expressions.loop_test(node.test)
        place = _line_of(node, test)
        number = self._next()
        leave = at(ast.Return(test), place)
        goes_on = self._function(f"test_{number}", [leave], names, place)
        body = self._function(f"body_{number}", self._block(node.body), names, place)
        access = self._access(number, names, place)
        functions = [load(f"{PREFIX}test_{number}"), load(f"{PREFIX}body_{number}")]
        called = operator("while_stmt", *functions, *accessors(number), facts)
        return [goes_on, body, *access, at(ast.Expr(called), place)]

    def _for(self, node: ast.For) -> list[ast.stmt]:
        once = set() if getattr(node, "goes_on", None) else appended_once(node.body)
        names, facts = self._variables([node.target, *node.body], self._live[node], once)
        source = self._expressions.expression(node.iter)
        place = _line_of(node, source)
        number = self._next()
        item = f"{PREFIX}item"
        take = at(ast.Assign([node.target], load(item)), node.target)
        block = [*self._check_written(bound(node.target), node), take, *self._block(node.body)]
        body = self._function(f"body_{number}", block, names, place, parameter=item)
        stop: ast.expr = constant(None)
        flags = getattr(node, "goes_on", None)
        if flags is not None:
            stop = thunk(at(self._expressions.expression(flags), place))
        access = self._access(number, names, place)
        loop = load(f"{PREFIX}body_{number}")
        called = operator("for_stmt", source, stop, loop, *accessors(number), facts)
        return [body, *access, at(ast.Expr(called), place)]

    def _try(self, node: ast.Try) -> ast.stmt:
        node.body = self._block(node.body)
        if node.handlers:
            inside = ast.With([ast.withitem(operator("trying"), None)], node.body)
            node.body = [at(inside, node)]
        for handler in node.handlers:
            if handler.type is not None:
                handler.type = self._expressions.expression(handler.type)
            check = at(ast.Expr(operator("unless_refused")), handler)
            handler.body = [check, *self._block(handler.body)]
        node.orelse = self._block(node.orelse)
        node.finalbody = self._block(node.finalbody)
        return node

    def _nested(self, node: ast.FunctionDef) -> ast.stmt:
        if not is_convertible(node) or opts_out(node):
            return node
        arguments = node.args
        arguments.defaults = [self._expressions.visit(default) for default in arguments.defaults]
        return convert_function(node)

    def _check_written(
        self, names: Sequence[str] | dict[str, None], node: ast.stmt
    ) -> list[ast.stmt]:
        return [
            at(ast.Expr(operator("writes", constant(name), constant(self._words[name]))), node)
            for name in names
            if name in self._words
        ]

    def _check_changed(self, target: ast.expr) -> list[ast.stmt]:
        if not isinstance(target, ast.Subscript | ast.Attribute) or not is_path(target.value):
            return []
        base = copied(target.value)
        text = constant(ast.unparse(target))
        return [at(ast.Expr(operator("changes", base, text)), target)]


def _line_of(node: ast.stmt, expression: ast.expr) -> ast.expr:
    """A place on the line of a statement, to blame for what its operator does."""
    place = ast.copy_location(ast.Constant(None), expression)
    place.lineno = node.lineno if place.lineno < node.lineno else place.lineno
    return place
