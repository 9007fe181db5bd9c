"""The signal that a trace needs the result types of a function that is still being traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.capture.signatures import Record


class UnresolvedRecursion(BaseException):
    """A function calls itself before its result types are known; the nearest branch catches it."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"the result types of {record.name} are not known yet")
        self.record = record
