"""Statements in the few forms that the later passes know.

Annotations of variables go, a loop that assigns in its test tests inside, and a `match` on plain
values is a chain of `if`s.
"""

from __future__ import annotations

import ast

from penstock.conversion.build import PREFIX, at, load, store


def prepared(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a function, rewritten; the tree is changed in place."""
    return _Prepare().block(body)


class _Prepare(ast.NodeTransformer):
    def __init__(self) -> None:
        self._subjects = 0

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            found = self.visit(statement)
            made += found if isinstance(found, list) else [found]
        return made

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return at(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        self.generic_visit(node)
        if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test)):
            return node
        stop: ast.stmt = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
        body = [at(stop, node.test), *node.body]
        if node.orelse:
            stop.body = [*node.orelse, at(ast.Break(), node)]  # type: ignore[attr-defined]
        return at(ast.While(ast.Constant(True), body, []), node)

    def visit_Match(self, node: ast.Match) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        self._subjects += 1
        name = f"{PREFIX}subject_{self._subjects}"
        tests = [_test(case.pattern, name) for case in node.cases]
        if any(test is None for test in tests):
            return node
        chain: list[ast.stmt] = []
        for case, test in reversed(list(zip(node.cases, tests, strict=True))):
            assert test is not None
            whole = test
            if case.guard is not None:
                whole = ast.BoolOp(ast.And(), [test, case.guard])
            if isinstance(whole, ast.Constant):
                chain = case.body
            else:
                chain = [at(ast.If(whole, case.body, chain), case.pattern)]
        return [at(ast.Assign([store(name)], node.subject), node), *chain]


def _test(pattern: ast.pattern, name: str) -> ast.expr | None:
    """The pattern as a test of a variable; None where it takes values apart."""
    match pattern:
        case ast.MatchValue():
            return ast.Compare(load(name), [ast.Eq()], [pattern.value])
        case ast.MatchSingleton():
            return ast.Compare(load(name), [ast.Is()], [ast.Constant(pattern.value)])
        case ast.MatchAs(pattern=None, name=None):
            return ast.Constant(True)
        case ast.MatchOr():
            parts = [_test(part, name) for part in pattern.patterns]
            found = [part for part in parts if part is not None]
            return ast.BoolOp(ast.Or(), found) if len(found) == len(parts) else None
    return None
