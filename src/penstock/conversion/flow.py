"""Which variables are needed later, and which certainly have a value: the two classic analyses.

They run after `escapes`, so that a block goes from its first statement to its last, and only
`return` and `raise` end it early.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from penstock.conversion.names import bound, captures, read

Names = frozenset[str]


class Liveness:
    """For each branch and loop of a function, the variables that are read after it."""

    def __init__(self, body: list[ast.stmt]) -> None:
        #: After an `if` or `assert`, and at the head of a loop: before each test, after the last.
        self.live: dict[ast.stmt, Names] = {}
        self._captures = captures(body)
        self._block(body, frozenset())

    def _reads(self, code: ast.AST | Iterable[ast.AST | None] | None) -> Names:
        """What code reads, and what the functions that it may call read."""
        names = read(code)
        return frozenset(names.union(*(self._captures.get(name, ()) for name in names)))

    def _block(self, block: list[ast.stmt], after: Names) -> Names:
        for statement in reversed(block):
            after = self._statement(statement, after)
        return after

    def _statement(self, node: ast.stmt, after: Names) -> Names:
        match node:
            case ast.If():
                self.live[node] = after
                arms = self._block(node.body, after) | self._block(node.orelse, after)
                return self._reads(node.test) | arms
            case ast.While() | ast.For():
                return self._loop(node, after)
            case ast.With():
                inside = self._block(node.body, after) - set(bound(node.items))
                return self._reads(node.items) | inside
            case ast.Try():
                return self._try(node, after)
            case ast.Match():
                arms = frozenset[str]().union(
                    *(self._reads(c.guard) | self._block(c.body, after) for c in node.cases)
                )
                return self._reads(node.subject) | self._reads(node.cases) | arms | after
            case ast.Return() | ast.Raise():
                return self._reads(node)
            case ast.Assert():
                self.live[node] = after
                return after | self._reads(node)
            case ast.AugAssign() | ast.Delete():
                return after | self._reads(node)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                return (after - set(bound(targets))) | self._reads(node)
            case ast.FunctionDef() | ast.Import() | ast.ImportFrom() | ast.ClassDef():
                return (after - set(bound(node))) | self._reads(node)
        return after | self._reads(node)

    def _loop(self, node: ast.While | ast.For, after: Names) -> Names:
        if isinstance(node, ast.For):
            targets = set(bound(node.target))
            each_time = self._reads(getattr(node, "goes_on", None))
        else:
            targets, each_time = set(), self._reads(node.test)
        head = after | each_time
        while True:
            longer = head | (self._block(node.body, head) - targets)
            if longer == head:
                break
            head = longer
        self.live[node] = head
        return head | (self._reads(node.iter) if isinstance(node, ast.For) else frozenset())

    def _try(self, node: ast.Try, after: Names) -> Names:
        after = self._block(node.finalbody, after)
        handlers = frozenset[str]().union(
            *(self._reads(h.type) | self._block(h.body, after) for h in node.handlers)
        )
        body = self._block(node.body, self._block(node.orelse, after) | handlers)
        return body | handlers | after


class Definedness:
    """For each variable that is read, whether it may be without a value there."""

    def __init__(self, body: list[ast.stmt], given: Iterable[str]) -> None:
        #: The `Name` nodes whose variable may have no value.
        self.doubtful: set[ast.Name] = set()
        self._local = set(bound(body))
        self._block(body, frozenset(given))

    def _note(self, code: ast.AST | None, before: Names) -> None:
        if code is not None:
            for node in _names_read(code):
                if node.id in self._local and node.id not in before:
                    self.doubtful.add(node)

    def _block(self, block: list[ast.stmt], before: Names) -> Names | None:
        """What has a value after the block; None where it never gets there."""
        now: Names | None = before
        for statement in block:
            if now is None:
                break
            now = self._statement(statement, now)
        return now

    def _statement(self, node: ast.stmt, before: Names) -> Names | None:
        match node:
            case ast.If():
                self._note(node.test, before)
                before |= _certain(node.test)
                return _either(self._block(node.body, before), self._block(node.orelse, before))
            case ast.While():
                self._note(node.test, before)
                before |= _certain(node.test)
                self._block(node.body, before)
                return before
            case ast.For():
                self._note(node.iter, before)
                self._block(node.body, before | set(bound(node.target)))
                return before
            case ast.With():
                for item in node.items:
                    self._note(item.context_expr, before)
                return self._block(node.body, before | set(bound(node.items)))
            case ast.Try():
                done = self._block(node.body, before)
                done = done if done is None else self._block(node.orelse, done)
                for handler in node.handlers:
                    named = before if handler.name is None else before | {handler.name}
                    done = _either(done, self._block(handler.body, named))
                last = self._block(node.finalbody, before)
                return done if done is None or last is None else done | last
            case ast.Match():
                self._note(node.subject, before)
                ends: Names | None = before
                for case in node.cases:
                    ends = _either(ends, self._block(case.body, before | set(bound(case.pattern))))
                return ends
            case ast.Return() | ast.Raise():
                self._note(node, before)
                return None
            case ast.Delete():
                self._note(node, before)
                return before - set(bound(node))
            case ast.FunctionDef():
                for part in (*node.decorator_list, *node.args.defaults):
                    self._note(part, before)
                return before | {node.name}
        self._note(node, before)
        return before | _certain(node)


def _either(one: Names | None, other: Names | None) -> Names | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _certain(code: ast.AST) -> Names:
    """Names that the code assigns whenever it runs."""
    match code:
        case ast.BoolOp():
            parts: list[ast.AST] = [code.values[0]]
        case ast.IfExp():
            parts = [code.test]
        case ast.Compare():
            parts = [code.left, code.comparators[0]]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() | ast.Lambda():
            return frozenset()
        case ast.NamedExpr():
            return frozenset([code.target.id]) | _certain(code.value)
        case ast.Name() | ast.FunctionDef() | ast.ClassDef() | ast.alias():
            return frozenset(bound(code))
        case _:
            parts = list(ast.iter_child_nodes(code))
    return frozenset[str]().union(*(_certain(part) for part in parts))


def _names_read(code: ast.AST) -> Iterable[ast.Name]:
    """Reads in code that runs now: not in functions, which run later."""
    if isinstance(code, ast.Name):
        if isinstance(code.ctx, ast.Load):
            yield code
        return
    if isinstance(code, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    targets: set[str] = set()
    if isinstance(code, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets = set(bound([generator.target for generator in code.generators]))
    walrus = _certain(code) if isinstance(code, ast.expr) else frozenset()
    for child in ast.iter_child_nodes(code):
        for name in _names_read(child):
            if name.id not in targets and name.id not in walrus:
                yield name
