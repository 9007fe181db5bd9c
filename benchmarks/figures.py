"""Tables of measured figures, the same for a terminal and for RESULTS.md.

A table holds text that is ready to be read; how figures are rounded is decided here, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    low: float
    middle: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        """The quartiles of `values`, of which there may be one."""
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(low, median(values), high)

    def __str__(self) -> str:
        return f"{rounded(self.middle)} ({rounded(self.low)} to {rounded(self.high)})"


@dataclass(frozen=True)
class Figures:
    """What was measured, as rows of text under headings."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: What the figures contain and leave out.
    caption: str = ""

    def table(self) -> Table:
        """The figures for a terminal."""
        table = Table(title=self.title, caption=self.caption, box=box.SIMPLE_HEAD)
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


def rounded(value: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_markdown(tables: Sequence[Figures]) -> str:
    """The tables as Markdown; neighbours with the same headings become one, with their captions
    below.
    """
    parts = [_markdown(group) for group in _grouped(tables)]
    return "\n\n".join(parts)


def _grouped(tables: Sequence[Figures]) -> list[list[Figures]]:
    groups: list[list[Figures]] = []
    for table in tables:
        if groups and groups[-1][-1].headings == table.headings:
            groups[-1].append(table)
        else:
            groups.append([table])
    return groups


def _markdown(group: Sequence[Figures]) -> str:
    headings = group[0].headings
    rows = [("", *headings), ("---", "---", *["---:"] * (len(headings) - 1))]
    rows += [(table.title, *row) for table in group for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    captions = dict.fromkeys(table.caption for table in group if table.caption)
    return "\n".join(lines) + "".join(f"\n\n{caption}" for caption in captions)
