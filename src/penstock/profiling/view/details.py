"""What a page tells about a thing that was clicked on: some lines, and the user's own source."""

from __future__ import annotations

import linecache
from typing import Any, TypeAlias

from penstock.ir.program import Source

#: Ready to be written as JSON.
Json: TypeAlias = dict[str, Any]

#: Lines shown before and after the line in question.
AROUND = 4


def detail(title: str, lines: list[str], source: Source | None) -> Json:
    """What is shown for one thing."""
    return {"title": title, "lines": lines, "source": source_excerpt(source)}


def source_excerpt(source: Source | None) -> Json | None:
    """A line of user code with those around it, as far as they can be found."""
    if source is None:
        return None
    numbers = range(max(1, source.line - AROUND), source.line + AROUND + 1)
    found = [[number, linecache.getline(source.file, number).rstrip("\n")] for number in numbers]
    is_found = any(text for _, text in found)
    return {"text": str(source), "line": source.line, "excerpt": found if is_found else []}
