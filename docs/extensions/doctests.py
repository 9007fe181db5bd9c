"""Shows the examples of docstrings as code in the reference: Markdown knows no `>>>`."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """The text with a fence around each example, which ends at an empty line."""
    lines: list[str] = []
    indent: str | None = None
    for line in [*text.splitlines(), ""]:
        bare = line.lstrip()
        if indent is None and bare.startswith(">>>"):
            indent = line[: len(line) - len(bare)]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not bare:
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines)


class Doctests(griffe.Extension):
    """Puts the fences in."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
