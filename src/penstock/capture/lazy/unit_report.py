"""What recording found out about the functions of a model, for explanations.

Filled while calls are recorded; it decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FunctionRecord:
    """One function, method or kind of module."""

    name: str
    #: Why its calls are not one step; None where they are.
    reason: str | None = None
    #: Calls, and steps that were recorded inside of those that were not one step.
    calls: int = 0
    operations: int = 0

    @property
    def operations_per_call(self) -> float:
        """How many steps one call costs."""
        return self.operations / self.calls if self.calls else 0.0


@dataclass(slots=True)
class UnitReport:
    """All functions that were asked about, by name."""

    functions: dict[str, FunctionRecord] = field(default_factory=dict)

    def count(self, name: str, reason: str | None, operations: int = 0) -> None:
        """One more call; `operations` were recorded inside."""
        record = self.functions.get(name)
        if record is None:
            record = self.functions[name] = FunctionRecord(name)
        record.reason = reason
        record.calls += 1
        record.operations += operations

    @property
    def units(self) -> list[FunctionRecord]:
        """Functions whose calls are one step, most called first."""
        found = [record for record in self.functions.values() if record.reason is None]
        return sorted(found, key=lambda record: -record.calls)

    @property
    def worth_marking(self) -> list[FunctionRecord]:
        """Functions that would save steps as units, those that would save most first."""
        found = [record for record in self.functions.values() if record.reason is not None]
        worth = [record for record in found if record.operations > record.calls]
        return sorted(worth, key=lambda record: record.calls - record.operations)

    def lines(self) -> list[str]:
        """The report as a person reads it."""
        shown = [f"{r.name}: {r.calls} calls, one step each" for r in self.units]
        for record in self.worth_marking:
            per_call = f"{record.operations_per_call:.3g} steps each"
            shown.append(f"{record.name}: {record.calls} calls, {per_call}: {record.reason}")
        return shown
