"""Errors of a plan: a fault with the rows, then with the instance and the line, it belongs to."""

from __future__ import annotations

from penstock.faults import Fault
from penstock.ir.program import Source
from penstock.plan.host_types import Array


class PlanningError(RuntimeError):
    """The machine broke one of its own invariants."""


class HostOperationError(Exception):
    """An operation of the machine that has no result for some rows.

    `rows` are positions in the arrays of the evaluation; the fault is that of the first.
    """

    def __init__(self, rows: Array, fault: Fault, source: Source | None = None) -> None:
        super().__init__(f"{fault.what} (rows {rows[:8].tolist()}, {len(rows)} in all)")
        self.rows = rows
        self.fault = fault
        #: The line, where the operation knows it better than its node.
        self.source = source


class RowFault(Exception):
    """A row cannot go on: why, for which instance of the batch, at which line."""

    def __init__(self, fault: Fault, instance: int, source: Source | None) -> None:
        super().__init__(f"{fault.what} (instance {instance}, at {source})")
        self.fault = fault
        self.instance = instance
        self.source = source
