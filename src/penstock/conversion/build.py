"""Small pieces of syntax trees that the passes put together."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeVar

#: Variables of the passes start with this; users' names do not.
PREFIX = "_ps_"

#: The name under which generated code finds the operators.
OPERATORS = "_ps"

#: The parameter that tells a lambda made here from one of the user's.
THUNK = f"{PREFIX}thunk"

_Node = TypeVar("_Node", bound=ast.AST)


def at(node: _Node, place: ast.AST) -> _Node:
    """The node, and all in it that is nowhere yet, at the place of another."""
    ast.copy_location(node, place)
    _place(node, node)
    return node


def _place(node: ast.AST, place: ast.AST) -> None:
    """Give a place to what has none; what has one has placed all that is in it."""
    for name in node._fields:
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                if "lineno" not in child._attributes:
                    _place(child, place)
                elif not hasattr(child, "lineno"):
                    ast.copy_location(child, place)
                    _place(child, place)


def copied(node: _Node) -> _Node:
    """The tree a second time, to be changed."""
    fields = {name: _copied(getattr(node, name, None)) for name in node._fields}
    places = {name: getattr(node, name) for name in node._attributes if hasattr(node, name)}
    return type(node)(**fields, **places)


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return copied(value) if isinstance(value, ast.AST) else value


def load(name: str) -> ast.Name:
    """A variable's value."""
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    """A variable as a target."""
    return ast.Name(name, ast.Store())


def operator(name: str, *arguments: ast.expr) -> ast.Call:
    """A call of an operator of the runtime."""
    return ast.Call(ast.Attribute(load(OPERATORS), name, ast.Load()), list(arguments), [])


def constant(value: Any) -> ast.Constant:
    """A constant; nested tuples too."""
    return ast.Constant(value)


def no_arguments(**kinds: Any) -> ast.arguments:
    """The parameters of a function that has none, but for those given."""
    fields: dict[str, Any] = {
        "posonlyargs": [],
        "args": [],
        "vararg": None,
        "kwonlyargs": [],
        "kw_defaults": [],
        "kwarg": None,
        "defaults": [],
    }
    return ast.arguments(**{**fields, **kinds})


def thunk(value: ast.expr) -> ast.expr:
    """An expression that is evaluated when, and if, it is asked for."""
    made = ast.Lambda(no_arguments(vararg=ast.arg(THUNK)), value)
    return at(made, value)


def function(
    name: str,
    body: Sequence[ast.stmt],
    place: ast.AST,
    *,
    parameter: str | None = None,
    declared: Sequence[ast.stmt] = (),
) -> ast.FunctionDef:
    """A function inside the user's function."""
    arguments = no_arguments(args=[ast.arg(parameter)] if parameter else [])
    made = ast.FunctionDef(name, arguments, [*declared, *body], [], None)
    if "type_params" in ast.FunctionDef._fields:
        setattr(made, "type_params", [])  # noqa: B010  since Python 3.12
    return at(made, place)


def tuple_of(items: Sequence[ast.expr], context: ast.expr_context) -> ast.Tuple:
    """A tuple display or target."""
    return ast.Tuple(list(items), context)
