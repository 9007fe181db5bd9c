"""`f.collate`: a batch made ready in a DataLoader's worker, its plan included.

A batch travels as few tensors: one for each leaf of the arguments, with all instances in it. Small
ones travel as bytes, since sharing memory between processes takes a connection for each tensor.
Plans go along where inputs alone decide them; what was not planned is planned when it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.api.columns import Collected, InputColumn
from penstock.errors import ArgumentError, report
from penstock.run.inputs import Pieces
from penstock.run.shipped import ShippedPlan

#: A tensor of so many bytes at most travels as bytes.
SMALL = 1 << 20


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
        self.leaf = replace(leaf, values=values)

    def __getstate__(self) -> tuple[Any, list[int] | None]:
        """What travels: see `_Travelling`."""
        leaf = self.leaf
        if isinstance(leaf, InputColumn) and isinstance(leaf.values, torch.Tensor):
            leaf = _Travelling.of(leaf, leaf.values)
        return leaf, self.lengths

    def __setstate__(self, state: tuple[Any, list[int] | None]) -> None:
        leaf, self.lengths = state
        self.leaf = leaf.column() if isinstance(leaf, _Travelling) else leaf

    def unpacked(self) -> Any:
        if self.lengths is None:
            return self.leaf
        values: Any = Pieces(self.leaf.values, self.lengths)
        return replace(self.leaf, values=values)

    def pinned(self) -> _Leaf:
        if isinstance(self.leaf, InputColumn):
            values: Any = self.leaf.values
            is_one = isinstance(values, torch.Tensor)
            pinned = values.pin_memory() if is_one else [value.pin_memory() for value in values]
            self.leaf = replace(self.leaf, values=pinned)
        return self


@dataclass(slots=True)
class _Travelling:
    """A column whose values are one tensor, in the form that is quickly sent and received."""

    #: Without the shapes of rows, and without values that travel as bytes.
    leaf: InputColumn
    #: The bytes of the values, and their shape; None where the tensor itself travels.
    values: npt.NDArray[np.uint8] | None
    shape: tuple[int, ...]
    #: For each row the number of its shape; None where all have one.
    numbers: npt.NDArray[np.int32] | None

    @staticmethod
    def of(leaf: InputColumn, values: torch.Tensor) -> _Travelling:
        """What stands for the column."""
        numbers = None
        if leaf.shape_of_row is not None:
            places = {shape: number for number, shape in enumerate(leaf.shapes)}
            numbers = np.array([places[shape] for shape in leaf.shape_of_row], np.int32)
        found = _bytes_of(values) if _is_small(values) else None
        kept: Any = values if found is None else None
        rest = replace(leaf, values=kept, shape_of_row=None)
        return _Travelling(rest, found, tuple(values.shape), numbers)

    def column(self) -> InputColumn:
        """The column that was sent."""
        rows, values = None, self.leaf.values
        if self.numbers is not None:
            rows = [self.leaf.shapes[number] for number in self.numbers.tolist()]
        if self.values is not None:
            values = _of_bytes(self.values, self.leaf.dtype).view(self.shape)
        return replace(self.leaf, values=values, shape_of_row=rows)


def _is_small(values: torch.Tensor) -> bool:
    is_plain = type(values) is torch.Tensor and values.layout is torch.strided
    is_here = values.device.type == "cpu" and not values.requires_grad
    return is_plain and is_here and values.nbytes <= SMALL


def _bytes_of(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    whole = values.resolve_conj().resolve_neg().contiguous()
    found: npt.NDArray[np.uint8] = whole.reshape(-1).view(torch.uint8).numpy()
    return found


def _of_bytes(found: npt.NDArray[np.uint8], dtype: torch.dtype) -> torch.Tensor:
    if not found.size:  # a deep copy of no bytes has no stride, and torch will not look at it
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(found).view(dtype)


def _differs_in_length(leaf: InputColumn) -> bool:
    return all(shape and shape[1:] == leaf.shapes[0][1:] for shape in leaf.shapes)


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
