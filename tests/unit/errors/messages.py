"""How the tests of this folder look at an error: its text with notes, and the line it blames."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_PLACE = re.compile(r"at (\S+\.py):(\d+), in (\S+)")

#: Ends every line of the tests' programs that an error should blame.
BLAMED = "# blamed"


def raised_by(call: Callable[[], Any]) -> Exception:
    """The exception that a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  the class is part of what is compared
        call()
    return caught.value


def text_of(error: BaseException) -> str:
    """Class, message and notes; places without folders and line numbers, which come and go."""
    text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return _PLACE.sub(lambda found: f"at {Path(found[1]).name}, in {found[3]}", text)


def blames_a_marked_line(error: BaseException) -> bool:
    """Whether every place that an error names is a line marked as blamed."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    places = _PLACE.findall(text)
    lines = [linecache.getline(file, int(line)).rstrip() for file, line, _ in places]
    return bool(lines) and all(line.endswith(BLAMED) for line in lines)
