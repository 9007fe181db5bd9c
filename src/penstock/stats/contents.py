"""What is found in one program, whatever it is written in."""

from __future__ import annotations

from typing import NamedTuple


class Contents(NamedTuple):
    """Which control flow a program has."""

    has_conditional: bool
    has_loop: bool


class UnreadableError(Exception):
    """A file is not what its name says; the message is the reason."""
