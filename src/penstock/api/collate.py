"""`f.collate`: a batch made ready in a DataLoader's worker, its plan included.

A batch travels as few tensors: one for each leaf of the arguments, with all instances in it. Plans
go along where inputs alone decide them; what was not planned is planned when it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.api.columns import Collected, InputColumn
from penstock.errors import ArgumentError, report
from penstock.run.inputs import Pieces
from penstock.run.shipped import ShippedPlan


class CollatedBatch:
    """Arguments of a map, bound and planned: what `f.collate` returns and `f.map` takes.

    It can be pickled, and pinned like other batches of a DataLoader.
    """

    def __init__(
        self, columns: Sequence[Collected], count: int, plans: Sequence[ShippedPlan], note: str
    ) -> None:
        self._columns = [_Column(column) for column in columns]
        self._count = count
        self.plans = tuple(plans)
        #: Why there is no plan for some of the instances; empty where all are planned.
        self.note = note

    def __len__(self) -> int:
        """How many instances there are."""
        return self._count

    def __repr__(self) -> str:
        state = self.note or "planned"
        return f"<CollatedBatch of {self._count} instances, {state}>"

    def columns(self) -> list[Collected]:
        """The columns, one for each argument."""
        return [column.unpacked() for column in self._columns]

    def values(self) -> list[list[Any]]:
        """For each argument its values, one for each instance."""
        return [column.unpacked().values(self._count) for column in self._columns]

    def pin_memory(self) -> CollatedBatch:
        """Pin all tensors, for faster copies to a GPU."""
        for column in self._columns:
            column.leaves = [leaf.pinned() for leaf in column.leaves]
        return self


class _Column:
    """One argument, packed."""

    def __init__(self, column: Collected) -> None:
        self.example = column.example
        self.leaves = [_Leaf(leaf) for leaf in column.leaves]

    def unpacked(self) -> Collected:
        return Collected([leaf.unpacked() for leaf in self.leaves], self.example)


class _Leaf:
    """One leaf of an argument, for all instances: one tensor where shapes allow it."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf
        #: How long each instance is, of values that lie one after the other.
        self.lengths: list[int] | None = None
        if not isinstance(leaf, InputColumn) or not isinstance(leaf.values, list):
            return
        values: Any = leaf.values
        if any(value.requires_grad for value in values):
            return  # an instance that nobody reads has no gradient; a part of a tensor has zeros
        if leaf.shape_of_row is None:
            values = torch.stack(values)
        elif _differs_in_length(leaf):
            self.lengths = [shape[0] for shape in leaf.shape_of_row or ()]
            values = torch.cat(values)
        self.leaf = _with_values(leaf, values)

    def unpacked(self) -> Any:
        if self.lengths is None:
            return self.leaf
        return _with_values(self.leaf, Pieces(self.leaf.values, self.lengths))

    def pinned(self) -> _Leaf:
        if isinstance(self.leaf, InputColumn):
            values: Any = self.leaf.values
            is_one = isinstance(values, torch.Tensor)
            pinned = values.pin_memory() if is_one else [value.pin_memory() for value in values]
            self.leaf = _with_values(self.leaf, pinned)
        return self


def _differs_in_length(leaf: InputColumn) -> bool:
    return all(shape and shape[1:] == leaf.shapes[0][1:] for shape in leaf.shapes)


def _with_values(leaf: InputColumn, values: Any) -> InputColumn:
    return InputColumn(leaf.path, values, leaf.dtype, leaf.device, leaf.shapes, leaf.shape_of_row)


def rows_of(examples: Sequence[Any], name: str) -> list[tuple[Any, ...]]:
    """The arguments of each example: a tuple is several, anything else is one."""
    rows = [example if type(example) is tuple else (example,) for example in examples]
    counts = sorted({len(row) for row in rows})
    if len(counts) == 1:
        return rows
    facts = [("examples", str(len(rows)))]
    if rows:
        facts = [("first example", f"{len(rows[0])} arguments")]
        odd = next(number for number, row in enumerate(rows) if len(row) != len(rows[0]))
        facts.append((f"example {odd}", f"{len(rows[odd])} arguments"))
    raise ArgumentError(
        report(
            f"{name}.collate: all examples must have the same number of arguments, and there must "
            "be one.",
            where=None,
            facts=facts,
            todo="Let the dataset return one argument, or a tuple of them, for each example.",
        )
    )


def as_columns(columns: Sequence[Any]) -> Sequence[Any]:
    """The columns of a map, where it was given a collated batch in their place: the values."""
    if len(columns) == 1 and isinstance(columns[0], CollatedBatch):
        return columns[0].values()
    return columns
