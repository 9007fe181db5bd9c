"""Errors of a plan: what went wrong for a row, in a form that the layers above turn into the user's terms."""

from __future__ import annotations

from penstock.ir.program import Source


class PlanningError(RuntimeError):
    """The machine broke one of its own invariants."""


class RowFault(Exception):
    """A row cannot go on: why, for which instance, at which line."""

    def __init__(
        self, reason: str, builtin: type[Exception], instance: int, source: Source | None
    ) -> None:
        super().__init__(f"{reason} (instance {instance}, at {source})")
        self.reason = reason
        self.builtin = builtin
        self.instance = instance
        self.source = source
