"""Imports point one way through the package, and what only plans never touches torch.

To move a folder, move its line in LAYERS. Imports under `if TYPE_CHECKING` do not count: they say
what a value is, and load nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

#: From what a user touches down to what everything stands on: a part imports itself and what is
#: below it.
LAYERS = [
    "cli",
    "bench",
    "doctor",
    "seeing",
    "stats",
    "demo",
    "nn",
    "testing",
    "api",
    "capture",
    "distributed",
    "autodiff",
    "run",
    "profiling",
    "calls",
    "conversion",
    "passes",
    "plan",
    "ir",
    "data",
    "faults",
    "errors",
]

#: Importer and imported module that may pass against the order, each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("penstock.ir.graph", "penstock.passes.partition"): "graph.partition() is asked of the graph",
}

#: Parts that import neither torch nor anything that does.
WITHOUT_TORCH = {"conversion", "plan", "ir", "passes", "profiling", "faults", "errors"}

#: Parts written as a user would write them: they may import `penstock` as a whole.
USERS = {"cli", "demo", "doctor", "nn", "seeing", "testing"}


def part_of(module: str) -> str:
    """`penstock.plan.rows` belongs to `plan`; the package itself to no part."""
    return module.split(".")[1] if "." in module else ""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_for_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif is_for_type_checking(node):
            assert isinstance(node, ast.If)
            yield from import_nodes(ast.Module(node.orelse, []))
        else:
            yield from import_nodes(node)


def imported_modules(path: Path) -> Iterator[str]:
    for node in import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: imports in the package are absolute"
            module = node.module or ""
            # `from penstock import data` names the part, not the package.
            yield from (f"{module}.{alias.name}" for alias in node.names)


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE) + [
    path for path in sorted(PACKAGE.glob("*.py")) if path.name not in {"__init__.py", "__main__.py"}
]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    name = module_name(path)
    part = part_of(name)
    assert part in LAYERS, f"{part} has no place in LAYERS"
    for imported in imported_modules(path):
        if imported.split(".")[0] != "penstock":
            continue
        target = part_of(imported)
        if target not in LAYERS:
            assert part in USERS, f"{name} imports {imported} from the package as a whole"
        elif LAYERS.index(target) < LAYERS.index(part):
            assert (name, imported.rpartition(".")[0]) in EXCEPTIONS, f"{name} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_what_only_plans_does_not_import_torch(path: Path) -> None:
    if part_of(module_name(path)) not in WITHOUT_TORCH:
        return
    for imported in imported_modules(path):
        assert imported.split(".")[0] != "torch", f"{path} imports {imported}"
        if imported.split(".")[0] == "penstock":
            assert part_of(imported) in WITHOUT_TORCH, f"{path} imports {imported}"
