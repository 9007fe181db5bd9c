"""Which names a piece of code binds, and which it reads from the function around it.

Nested functions, lambdas, classes and comprehensions have names of their own: only what they read
from outside counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from penstock.conversion.source import parameters

#: Methods that change a list, dict or set in place.
MUTATORS = frozenset(
    [
        *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
        *("update", "setdefault", "popitem", "add", "discard"),
        *("appendleft", "popleft", "extendleft"),
    ]
)

#: Those that change how many elements a list has.
GROWING = frozenset(["append", "extend", "pop"])

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(code: ast.AST | Iterable[ast.AST]) -> dict[str, None]:
    """Names that the code assigns in its own function, in order."""
    finder = _Bound()
    for node in [code] if isinstance(code, ast.AST) else code:
        finder.visit(node)
    return finder.names


class _Bound(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def _add(self, name: str | None) -> None:
        if name is not None:
            self.names[name] = None

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._add(node.name)
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.visit(part)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._add(node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_alias(self, node: ast.alias) -> None:
        self._add(node.asname or node.name.split(".")[0])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._add(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._add(node.rest)
        self.generic_visit(node)

    def _comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self._add(inner.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


def declared(body: Iterable[ast.stmt]) -> dict[str, str]:
    """Names that a function declares `global` or `nonlocal`, with that word."""
    words: dict[str, str] = {}
    for statement in body:
        for node in _own_nodes(statement):
            if isinstance(node, ast.Global | ast.Nonlocal):
                word = "global" if isinstance(node, ast.Global) else "nonlocal"
                words.update(dict.fromkeys(node.names, word))
    return words


def mutated(code: Iterable[ast.AST]) -> dict[str, bool]:
    """Local names whose value the code changes in place; True where a list may grow or shrink."""
    names: dict[str, bool] = {}

    def add(target: ast.expr, grows: bool) -> None:
        while isinstance(target, ast.Subscript | ast.Attribute) and not grows:
            target = target.value
        if isinstance(target, ast.Name):
            names[target.id] = names.get(target.id, False) or grows

    for part in code:
        for node in _own_nodes(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in MUTATORS:
                    add(node.func.value, node.func.attr in GROWING)
            elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(
                node.ctx, ast.Load
            ):
                add(node.value, False)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                add(node.target, isinstance(node.op, ast.Add))
    return names


def appended_once(body: Sequence[ast.stmt]) -> set[str]:
    """Lists to which each run of the body appends one element, and which it does not look at."""
    found: dict[str, int] = {}
    reads: dict[str, int] = {}
    for statement in body:
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name), "append"))):
                found[name] = found.get(name, 0) + 1
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                reads[node.id] = reads.get(node.id, 0) + 1
    return {name for name, count in found.items() if count == reads[name] == 1}


def _own_nodes(node: ast.AST) -> Iterable[ast.AST]:
    """All nodes of the code but those of nested functions and classes."""
    if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _own_nodes(child)


def read(code: ast.AST | Iterable[ast.AST | None] | None) -> set[str]:
    """Names that the code reads from its own function or from around it."""
    nodes = [code] if isinstance(code, ast.AST) else code or ()
    return set().union(*(_read(node) for node in nodes if node is not None))


def _read(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return {node.target.id} | _read(node.value)
    if isinstance(node, _FUNCTIONS):
        outside = read([*node.args.defaults, *node.args.kw_defaults])
        return outside | read(getattr(node, "decorator_list", ())) | free(node)
    if isinstance(node, ast.ClassDef):
        return read(node.decorator_list) | read(node.bases) | read(node.body)
    if isinstance(node, _COMPREHENSIONS):
        return _read_by_comprehension(node)
    return read(ast.iter_child_nodes(node))


def _read_by_comprehension(node: ast.expr) -> set[str]:
    generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
    targets = bound([generator.target for generator in generators])
    return _read(generators[0].iter) | (read(ast.iter_child_nodes(node)) - set(targets))


def free(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that a function's body takes from around it."""
    body = [function.body] if isinstance(function, ast.Lambda) else function.body
    words = declared(body) if isinstance(function, ast.FunctionDef) else {}  # type: ignore[arg-type]
    own = {*parameters(function.args), *bound(body)} - set(words)
    return (read(body) - own) | set(words)


def captures(body: Iterable[ast.stmt]) -> dict[str, set[str]]:
    """For each function defined in the body under a name, what it takes from around it."""
    found: dict[str, set[str]] = {}
    for statement in body:
        for node in _named_functions(statement):
            name, function = node
            found[name] = found.get(name, set()) | free(function)
    changed = True
    while changed:
        changed = False
        for name, names in found.items():
            more = set().union(*(found.get(other, set()) for other in names)) - names
            found[name] = names | more
            changed = changed or bool(more)
    return found


def _named_functions(
    statement: ast.AST,
) -> Iterable[tuple[str, ast.FunctionDef | ast.Lambda]]:
    if isinstance(statement, ast.FunctionDef):
        yield statement.name, statement
        return
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.Lambda | ast.ClassDef):
            yield from _named_functions(child)
