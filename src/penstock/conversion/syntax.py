"""Questions about pieces of syntax."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from penstock.conversion.build import at, constant
from penstock.conversion.escapes import falls_through

_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_CONTAINER_TYPES = frozenset(["list", "dict", "set", "defaultdict", "OrderedDict", "deque"])


def is_guard(node: ast.If) -> bool:
    """Whether an `if` does nothing but raise."""
    is_raise = len(node.body) == 1 and isinstance(node.body[0], ast.Raise)
    return is_raise and not node.orelse and node.body[0].exc is not None  # type: ignore[attr-defined]


def is_convertible(node: ast.AST) -> bool:
    """Whether a function is neither a generator nor a coroutine."""
    if not isinstance(node, ast.FunctionDef):
        return False
    kinds = (ast.Yield, ast.YieldFrom, ast.Await)
    return not any(isinstance(n, kinds) for s in node.body for n in _own_nodes(s))


def _own_nodes(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return []
    return [node, *(n for child in ast.iter_child_nodes(node) for n in _own_nodes(child))]


def own_statements(node: ast.AST) -> list[ast.AST]:
    """All statements inside a node, but those of nested functions and classes."""
    return [n for n in _own_nodes(node) if isinstance(n, ast.stmt)]


def opts_out(node: ast.FunctionDef) -> bool:
    """Whether a decorator says that a nested function stays as it is."""
    for decorator in node.decorator_list:
        text = ast.unparse(decorator).replace(" ", "")
        if text.endswith("do_not_convert") or "autograph=False" in text:
            return True
    return False


def returning(block: list[ast.stmt], node: ast.stmt) -> list[ast.stmt]:
    """The block, which returns on every path."""
    if not falls_through(block):
        return block
    return [*block, at(ast.Return(constant(None)), block[-1] if block else node)]


def targets(node: ast.stmt) -> list[ast.expr]:
    """What a statement assigns or deletes, tuples taken apart."""
    match node:
        case ast.Assign() | ast.Delete():
            found = list(node.targets)
        case ast.AugAssign():
            found = [node.target]
        case _:
            found = []
    flat: list[ast.expr] = []
    while found:
        target = found.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            found = [*target.elts, *found]
        else:
            flat.append(target.value if isinstance(target, ast.Starred) else target)
    return flat


def is_path(node: ast.expr) -> bool:
    """Whether looking at an expression twice does no harm."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Name):
            return False
        node = node.value
    return isinstance(node, ast.Name)


def makes_container(value: ast.expr) -> bool:
    """Whether an expression makes a new list, dict or set."""
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    return isinstance(value, _CONTAINERS) or (is_call and value.func.id in _CONTAINER_TYPES)  # type: ignore[attr-defined]


def handler_names(body: Sequence[ast.stmt]) -> set[str]:
    """Names that hold an exception inside a handler, and nothing after it."""
    nodes = [n for statement in body for n in ast.walk(statement)]
    return {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
