"""Every ```python fence of the README and of docs/ is run, page by page, in reading order.

A page's fences share one module. Line numbers are those of the page, so a traceback points into it.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of(page: Path) -> str:
    """The page with everything but its Python blanked, each line in its place."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for match in FENCE.finditer(text):
        first = text.count("\n", 0, match.start(1))
        block = match.group(1).splitlines()
        lines[first : first + len(block)] = block
    return "\n".join(lines)


def pages_with_code() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if code_of(page).strip()]


@pytest.mark.parametrize(
    "page", pages_with_code(), ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_the_code_on_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"page_{page.stem}")
    module.__file__ = str(page)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code_of(page), str(page), "exec"), module.__dict__)
