"""Control flow in Python source, found without running it.

Looked at is code of models: classes that have a `forward`, and functions under a decorator such as
`ps.function`. What a condition depends on cannot be known from the text; it counts unless it reads
nothing but attributes of `self`, or asks whether something is None.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

from penstock.stats.contents import Contents, UnreadableError

_DECORATORS = frozenset(["function", "unit", "script", "compile", "jit"])
_CONDITIONALS = frozenset(["cond", "switch"])
_LOOPS = frozenset(["while_loop", "scan", "associative_scan", "foldl", "foldr", "map_fn"])

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def contents_of_source(file: Path) -> Contents | None:
    """What is in the models of a file; None where it has none."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise UnreadableError(f"not Python: {error}") from error
    functions = list(_model_functions(tree))
    if not functions:
        return None
    nodes = [node for function in functions for node in ast.walk(function)]
    return Contents(any(map(_is_conditional, nodes)), any(map(_is_loop, nodes)))


def _model_functions(tree: ast.AST) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, _Function)]
            if any(method.name == "forward" for method in methods):
                yield from (method for method in methods if not method.name.startswith("__"))
        elif isinstance(node, _Function) and any(map(_is_model_decorator, node.decorator_list)):
            yield node


def _is_model_decorator(node: ast.expr) -> bool:
    return _last_name(node.func if isinstance(node, ast.Call) else node) in _DECORATORS


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_conditional(node: ast.AST) -> bool:
    if isinstance(node, ast.If | ast.IfExp):
        return _may_depend_on_data(node.test)
    if isinstance(node, ast.Match):
        return _may_depend_on_data(node.subject)
    return isinstance(node, ast.Call) and _last_name(node.func) in _CONDITIONALS


def _is_loop(node: ast.AST) -> bool:
    if isinstance(node, ast.While):
        return _may_depend_on_data(node.test)
    if isinstance(node, ast.For):
        return _may_depend_on_data(node.iter)
    return isinstance(node, ast.Call) and _last_name(node.func) in _LOOPS


def _may_depend_on_data(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Compare) and _is_none(expression.comparators[-1]):
        return False
    if isinstance(expression, ast.Call) and _last_name(expression.func) == "isinstance":
        return False
    names = (node.id for node in ast.walk(expression) if isinstance(node, ast.Name))
    return any(name != "self" and not hasattr(builtins, name) for name in names)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
