"""Private names of classes: `self.__x` written in class `A` is `self._A__x`."""

from __future__ import annotations

import ast


def mangled(node: ast.FunctionDef, class_name: str) -> ast.FunctionDef:
    """The function with the names that the compiler would have put in its place."""
    plain = class_name.lstrip("_")
    if plain:
        _Mangle(plain).visit(node)
    return node


class _Mangle(ast.NodeTransformer):
    def __init__(self, class_name: str) -> None:
        self._class_name = class_name

    def _name(self, name: str) -> str:
        is_private = name.startswith("__") and not name.endswith("__") and "." not in name
        return f"_{self._class_name}{name}" if is_private else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._name(node.attr)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._name(node.arg)
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.arg = None if node.arg is None else self._name(node.arg)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node
