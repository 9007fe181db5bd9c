"""Columns of a map, taken apart into one column of tensors per leaf.

A column holds the values of one leaf for all instances: a list of tensors, or one tensor with the
instances in front. All instances must have the structure, dtypes and devices of the first; shapes
may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from penstock.calls.structure import Structure, flatten, leaf_paths, unflatten
from penstock.capture.location import user_line
from penstock.capture.refusals import describe
from penstock.capture.static import is_static, static_key
from penstock.capture.worlds import device_name
from penstock.errors import ArgumentError, ColumnError, report

_DTYPE, _DEVICE, _SHAPE, _IS_CPU = map(attrgetter, ("dtype", "device", "shape", "is_cpu"))


@dataclass(slots=True)
class InputColumn:
    """One leaf that differs from instance to instance."""

    path: str
    #: A list with one tensor per instance, or one tensor with the instances in front.
    values: list[torch.Tensor] | torch.Tensor
    dtype: torch.dtype
    device: str
    #: The distinct shapes of one instance, in the order met.
    shapes: list[tuple[int, ...]]
    #: The shape of each instance; None where all have the first of `shapes`.
    shape_of_row: list[tuple[int, ...]] | None = None


@dataclass(slots=True)
class SharedTensor:
    """One tensor leaf that is the same for all instances."""

    path: str
    tensor: torch.Tensor


class Spread:
    """A column as the user gave it, one value per instance; stands for an argument."""

    def __init__(self, values: Sequence[Any] | torch.Tensor, name: str) -> None:
        self.values = values
        self.name = name


class Collected:
    """A column taken apart already; stands for an argument."""

    def __init__(self, leaves: list[Any], example: Any) -> None:
        #: One `InputColumn` or static value per leaf.
        self.leaves = leaves
        #: A value of this structure; what its leaves are does not matter.
        self.example = example

    @staticmethod
    def of(values: Sequence[Any] | torch.Tensor, name: str) -> Collected:
        """A column of a parameter with this name."""
        leaves, first = spread_columns(Spread(values, name), name)
        _, structure = flatten(first)
        return Collected(leaves, unflatten(structure, range(structure.num_leaves)))

    @property
    def kind(self) -> type | None:
        """The type of its values, where that tells their structure: tensors, numbers, or a
        dataclass of such.
        """
        cls = type(self.example)
        if cls is int:
            return torch.Tensor
        finders = _finders(cls)  # type: ignore[arg-type]
        is_flat = finders and all(type(find(self.example)) is int for find in finders)
        return cls if is_flat else None

    def values(self, count: int) -> list[Any]:
        """The values as the user gave them, one per instance."""
        _, structure = flatten(self.example)
        rows = [
            [leaf.values[n] if isinstance(leaf, InputColumn) else leaf for leaf in self.leaves]
            for n in range(count)
        ]
        return [unflatten(structure, row) for row in rows]


def as_tensor(leaf: Any, path: str) -> torch.Tensor:
    """A tensor or a number as a tensor; anything else is refused."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, bool | int | float | complex):
        return torch.tensor(leaf)
    if isinstance(leaf, np.generic):
        return torch.tensor(leaf.item())
    raise ArgumentError(
        report(
            "This argument cannot be traced.",
            where=user_line(),
            facts=[
                ("argument", f"{path}   {type(leaf).__name__}"),
                ("allowed", "tensors, numbers, and dicts, tuples, lists or dataclasses of these"),
            ],
            todo="Turn an array into a tensor with torch.as_tensor."
            if isinstance(leaf, np.ndarray)
            else "Turn a Python tree into a ps.data.Tree, mark a constant with ps.static, "
            "or run eager code with ps.map.",
        )
    )


def spread_columns(column: Spread, path: str) -> tuple[list[Any], Any]:
    """One `InputColumn` per leaf of a column's values, and the first value."""
    values = column.values
    if isinstance(values, torch.Tensor):
        shape = tuple(values.shape[1:])
        made = InputColumn(path, values, values.dtype, device_name(values.device), [shape])
        return [made], torch.empty(())
    first = values[0]
    if all(type(value) is type(first) for value in values) and isinstance(
        first, bool | int | float
    ):
        stacked = torch.tensor(values)
        return [InputColumn(path, stacked, stacked.dtype, "cpu", [()])], stacked[0]
    if isinstance(first, torch.Tensor):
        return [_input_column(_rows_of_tensors(values, column.name), path)], first
    fields = fields_of_tensors(values)
    if fields is not None:
        names = _paths_of_fields(type(first), path)  # type: ignore[arg-type]
        return list(map(_tensor_column, fields, names)), first
    _, structure = flatten(first)
    rows, paths = _aligned_rows(values, structure, column.name), _paths(structure, path)
    columns = [
        _input_column(list(row), leaf_path)
        for row, leaf_path in zip(zip(*rows, strict=True), paths, strict=True)
    ]
    return columns, first


@lru_cache(maxsize=1024)
def _paths_of_fields(cls: type, name: str) -> tuple[str, ...]:
    """How a user would name each field of a dataclass."""
    return tuple(f"{name}.{field}" for field in cls.__dataclass_fields__)  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def _paths(structure: Structure, name: str) -> tuple[str, ...]:
    """How a user would name each leaf of values with this structure."""
    return tuple(leaf_paths(unflatten(structure, range(structure.num_leaves)), name))


def _aligned_rows(
    values: Sequence[Any], structure: Structure, name: str
) -> Sequence[Sequence[Any]]:
    """The leaves of each value."""
    flat = list(map(flatten, values))
    for number, (_, found) in enumerate(flat):
        if found != structure:
            raise _structure_clash(name, values[0], number, values[number])
    return [leaves for leaves, _ in flat]


def _rows_of_tensors(values: Sequence[Any], name: str) -> list[Any]:
    """A column of tensors, some of which may be numbers."""
    if set(map(type, values)) != {torch.Tensor}:
        for number, value in enumerate(values):
            if not isinstance(value, torch.Tensor | bool | int | float):
                raise _structure_clash(name, values[0], number, value)
    return list(values)


def fields_of_tensors(values: Sequence[Any]) -> list[list[torch.Tensor]] | None:
    """The values of each field where all are of one dataclass with tensors for fields, quickly;
    None for others.
    """
    cls = type(values[0])
    finders = _finders(cls)  # type: ignore[arg-type]
    if not finders or set(map(type, values)) != {cls}:
        return None
    fields = [list(map(find, values)) for find in finders]
    return None if any(map(_has_others, fields)) else fields


@lru_cache(maxsize=1024)
def _finders(cls: type) -> tuple[Callable[[Any], Any], ...]:
    """What finds each field of a dataclass; none for other types."""
    return tuple(map(attrgetter, getattr(cls, "__dataclass_fields__", ())))


def _input_column(values: list[Any], path: str) -> Any:
    first = values[0]
    if is_static(first):
        for number, value in enumerate(values):
            if not _same_static(first, value):
                todo = "Map over the instances of each static value separately."
                raise _clash(path, "static value", repr(first), number, repr(value), todo)
        return first
    tensors = [as_tensor(value, path) for value in values] if _has_others(values) else values
    return _tensor_column(tensors, path)


def _tensor_column(tensors: list[torch.Tensor], path: str) -> InputColumn:
    dtype, device = tensors[0].dtype, tensors[0].device
    if len(set(map(_DTYPE, tensors))) > 1 or not _is_on_one_device(tensors):
        for number, tensor in enumerate(tensors):
            if tensor.dtype != dtype or tensor.device != device:
                texts = describe(tensors[0]), number, describe(tensor)
                todo = "Convert all instances to one dtype and device."
                raise _clash(path, "type", *texts, todo)
    shapes = list(map(_SHAPE, tensors))
    distinct = list(map(tuple, dict.fromkeys(shapes)))
    return InputColumn(
        path, tensors, dtype, device_name(device), distinct, shapes if len(distinct) > 1 else None
    )


def _is_on_one_device(tensors: list[torch.Tensor]) -> bool:
    return all(map(_IS_CPU, tensors)) or len(set(map(_DEVICE, tensors))) == 1


def _has_others(values: list[Any]) -> bool:
    """Whether not all are tensors."""
    kinds = set(map(type, values))
    return kinds != _TENSORS and not all(issubclass(kind, torch.Tensor) for kind in kinds)


#: The types of values where all are plain tensors.
_TENSORS = {torch.Tensor}


def _same_static(left: Any, right: Any) -> bool:
    return static_key(left) == static_key(right)


def rows_of_column(column: InputColumn, numbers: Sequence[int]) -> InputColumn:
    """The values of some of the instances."""
    shapes = column.shape_of_row
    if isinstance(column.values, torch.Tensor):
        values: Any = column.values[list(numbers)]
    else:
        values = [column.values[number] for number in numbers]
    if shapes is None:
        return InputColumn(column.path, values, column.dtype, column.device, column.shapes)
    kept = [shapes[number] for number in numbers]
    distinct = list(dict.fromkeys(kept))
    rest = kept if len(distinct) > 1 else None
    return InputColumn(column.path, values, column.dtype, column.device, distinct, rest)


def _structure_clash(name: str, first: Any, number: int, value: Any) -> ColumnError:
    return ColumnError(
        report(
            f"map: instance {number} of {name} has another structure than the first.",
            where=user_line(),
            facts=[("instance 0", describe(first)), (f"instance {number}", describe(value))],
            todo="Give all instances one structure, or map over each kind separately.",
        )
    )


def _clash(path: str, what: str, first: str, number: int, value: str, todo: str) -> ColumnError:
    """The error about an instance that differs in `what` from the first."""
    return ColumnError(
        report(
            f"map: instance {number} has another {what} than the first.",
            where=user_line(),
            facts=[
                ("instance 0", f"{path}   {first}"),
                (f"instance {number}", f"{path}   {value}"),
            ],
            todo=todo,
        )
    )
