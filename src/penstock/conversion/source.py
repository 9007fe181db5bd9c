"""The syntax tree of a function that is already running: its own file, lines and columns.

The whole file is parsed once and searched by line and name; where a file is more than Python (a
notebook cell with magics, a page of documentation) the lines of the function alone are parsed.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from dataclasses import dataclass
from types import CodeType
from typing import Any

Definition = ast.FunctionDef | ast.Lambda

#: The definitions of a file by name and first line.
_Definitions = dict[tuple[str, int], list["Found"]]

#: What is known of files by name, with the lines they were parsed from.
_files: dict[str, tuple[tuple[str, ...], _Definitions]] = {}


class NoSourceError(Exception):
    """A function cannot be converted; the text says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Found:
    """A definition, and the class it is written in, for the names that classes mangle."""

    node: Definition
    class_name: str | None


def find_definition(code: CodeType, module_globals: dict[str, Any]) -> Found:
    """The definition that `code` was compiled from. The tree is shared: copy before a change."""
    lines = tuple(linecache.getlines(code.co_filename, module_globals))
    if not lines:
        raise NoSourceError(f"its source could not be had: there is no file {code.co_filename!r}")
    found = _matching(_definitions_of_file(code.co_filename, lines), code)
    if not found:
        found = _matching(_definitions_in(_parsed_lines(code, lines)), code)
    if len(found) > 1:
        found = [item for item in found if _covers(item.node, code)] or found
    if len(found) != 1:
        raise NoSourceError("its source could not be told from other code on the same line")
    return found[0]


def _definitions_of_file(name: str, lines: tuple[str, ...]) -> _Definitions:
    known = _files.get(name)
    if known is None or known[0] != lines:
        try:
            definitions = _definitions_in(ast.parse("".join(lines)))
        except SyntaxError:
            definitions = {}
        known = _files[name] = lines, definitions
    return known[1]


def _definitions_in(tree: ast.AST) -> _Definitions:
    """All functions and lambdas of a tree."""
    found: _Definitions = {}
    waiting: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while waiting:
        node, class_name = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
            found.setdefault((name, first_line(node)), []).append(Found(node, class_name))
        inside = node.name if isinstance(node, ast.ClassDef) else class_name
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def _parsed_lines(code: CodeType, lines: tuple[str, ...]) -> ast.Module:
    """The lines of one definition, with the line numbers of the file."""
    first = code.co_firstlineno
    try:
        block = inspect.getblock(list(lines[first - 1 :]))
        tree = ast.parse(textwrap.dedent("".join(block)))
    except (SyntaxError, IndexError):
        raise NoSourceError("its source could not be read by itself") from None
    ast.increment_lineno(tree, first - 1)
    return tree


def _matching(definitions: _Definitions, code: CodeType) -> list[Found]:
    found = definitions.get((code.co_name, code.co_firstlineno), [])
    return [item for item in found if _has_parameters(item.node, code)]


def _has_parameters(node: Definition, code: CodeType) -> bool:
    names = parameters(node.args)
    return names == list(code.co_varnames[: len(names)])


def first_line(node: Definition) -> int:
    """The line that the compiler notes for a definition: that of its first decorator."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def parameters(arguments: ast.arguments) -> list[str]:
    """The names of all parameters, in the order of a code object's variables."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [item.arg for item in (*named, *extra)]


def _covers(node: Definition, code: CodeType) -> bool:
    """Whether the instructions of `code` lie inside `node`, by line and column."""
    if isinstance(node, ast.FunctionDef):
        return True
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start, end = (node.body.lineno, node.body.col_offset), (node.end_lineno, node.end_col_offset)
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    return all(start <= place <= end for place in places)
