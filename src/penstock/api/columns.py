"""Arguments of a call or a map, taken apart into one column of tensors per leaf.

A column holds the values of one leaf for all instances: a list of tensors, or one tensor with the
instances in front. All instances must have the structure, dtypes and devices of the first; shapes
may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.api.markers import Shared
from penstock.calls.structure import Structure, flatten, leaf_paths, unflatten
from penstock.capture.location import user_line
from penstock.capture.refusals import describe
from penstock.capture.static import is_static, static_key
from penstock.capture.worlds import device_name
from penstock.errors import ArgumentError, ColumnError, report

_DTYPE, _DEVICE, _SHAPE = map(attrgetter, ("dtype", "device", "shape"))


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


@dataclass(slots=True)
class Batch:
    """All arguments of one call: for each leaf a column, a shared tensor or a static value."""

    structure: Structure
    leaves: list[InputColumn | SharedTensor | Any]
    count: int
    #: Which instances of a map these are, for errors; None where there is only one.
    numbers: Sequence[int] | None = None
    #: What `penstock.api.entries` has found out about it, with the guards of that call.
    facts: Any = None
    inputs: list[InputColumn] = field(init=False)
    shared: list[SharedTensor] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = [leaf for leaf in self.leaves if isinstance(leaf, InputColumn)]
        self.shared = [leaf for leaf in self.leaves if isinstance(leaf, SharedTensor)]

    def rows(self, numbers: Sequence[int]) -> Batch:
        """The same arguments for some of the instances."""
        leaves = [
            _rows(leaf, numbers) if isinstance(leaf, InputColumn) else leaf for leaf in self.leaves
        ]
        names = numbers if self.numbers is None else [self.numbers[n] for n in numbers]
        return Batch(self.structure, leaves, len(numbers), names)


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
        leaves, first = _spread_columns(Spread(values, name), name)
        _, structure = flatten(first)
        return Collected(leaves, unflatten(structure, range(structure.num_leaves)))

    def values(self, count: int) -> list[Any]:
        """The values as the user gave them, one per instance."""
        _, structure = flatten(self.example)
        rows = [
            [leaf.values[n] if isinstance(leaf, InputColumn) else leaf for leaf in self.leaves]
            for n in range(count)
        ]
        return [unflatten(structure, row) for row in rows]


def one_instance(args: Any, kwargs: Any, names: Sequence[str]) -> Batch:
    """The arguments of a plain call, already bound."""
    return _batch(args, kwargs, names, 1, lambda leaf, path: ([_single_leaf(leaf, path)], leaf))


def many_instances(args: Any, kwargs: Any, names: Sequence[str], count: int) -> Batch:
    """The arguments of a map, already bound: `Spread`s are columns, everything else is shared."""
    return _batch(
        args, kwargs, names, count, lambda leaf, path: ([_shared_leaf(leaf, path, count)], leaf)
    )


def _batch(
    args: Any,
    kwargs: Any,
    names: Sequence[str],
    count: int,
    take: Callable[[Any, str], tuple[list[Any], Any]],
) -> Batch:
    key = _likeness(args, kwargs, names)
    layout = _layouts.get(key) if key is not None else None
    if layout is not None:
        leaves = []
        for entry, path in zip((*args, *kwargs.values()), layout.paths, strict=True):
            columns = _spread_columns(entry, path) if type(entry) is Spread else take(entry, path)
            leaves.extend(columns[0])
        return Batch(layout.structure, leaves, count, range(count) if count > 1 else None)
    batch = _new_batch(args, kwargs, names, count, take)
    if key is not None and len(_layouts) < MOST_LAYOUTS:
        _layouts[key] = _Layout(batch.structure, argument_paths(args, kwargs, names))
    return batch


class _Layout(NamedTuple):
    """What bound arguments of the same types have in common."""

    structure: Structure
    paths: list[str]


#: Layouts that are remembered; most functions have one or two.
MOST_LAYOUTS = 1024
_layouts: dict[Hashable, _Layout] = {}

#: Arguments that are one leaf each.
_LEAVES = frozenset((torch.Tensor, nn.Parameter, bool, int, float, complex))


def _likeness(args: Any, kwargs: Any, names: Sequence[str]) -> Hashable | None:
    """What arguments of one layout have in common, where that is quickly seen: each is a leaf, or a
    column of leaves or of dataclasses.
    """
    kinds: list[Any] = []
    for entry in (*args, *kwargs.values()):
        kind = type(entry)
        if kind is Spread:
            if isinstance(entry.values, torch.Tensor):
                kind = torch.Tensor
            else:
                kind = type(entry.values[0])
                if kind not in _LEAVES and fields_of_tensors(entry.values[:1]) is None:
                    return None
            kinds.append(kind if kind not in _LEAVES else torch.Tensor)
        elif kind in _LEAVES:
            kinds.append(torch.Tensor)
        else:
            return None
    return (*kinds, len(args), *kwargs, *names)


def _new_batch(
    args: Any,
    kwargs: Any,
    names: Sequence[str],
    count: int,
    take: Callable[[Any, str], tuple[list[Any], Any]],
) -> Batch:
    """Arguments of any structure."""
    leaves: list[Any] = []
    examples: list[Any] = []
    entries, outer = flatten((args, kwargs))
    for entry, path in zip(entries, argument_paths(args, kwargs, names), strict=True):
        if isinstance(entry, Spread):
            columns, example = _spread_columns(entry, path)
        elif isinstance(entry, Collected):
            columns, example = entry.leaves, entry.example
        elif isinstance(entry, Shared):
            inner, _ = flatten(entry.value)
            paths = leaf_paths(entry.value, path)
            columns = [_shared_leaf(*pair, count) for pair in zip(inner, paths, strict=True)]
            example = entry.value
        else:
            columns, example = take(entry, path)
        leaves.extend(columns)
        examples.append(example)
    _, structure = flatten(unflatten(outer, examples))
    return Batch(structure, leaves, count, range(count) if count > 1 else None)


def argument_paths(args: Any, kwargs: Any, names: Sequence[str]) -> list[str]:
    """How a user would name each leaf of the bound arguments."""
    rest = [f"{names[-1] if names else 'args'}[{n}]" for n in range(len(args) - len(names) + 1)]
    positional = [*names, *rest[1:]] if len(args) > len(names) else list(names)[: len(args)]
    named = [*zip(positional, args, strict=True), *kwargs.items()]
    return [path for name, value in named for path in leaf_paths(value, name)]


def _single_leaf(leaf: Any, path: str) -> Any:
    if is_static(leaf):
        return leaf
    tensor = as_tensor(leaf, path)
    shape = tuple(tensor.shape)
    return InputColumn(path, [tensor], tensor.dtype, device_name(tensor.device), [shape])


def _shared_leaf(entry: Any, path: str, count: int) -> Any:
    if is_static(entry):
        return entry
    tensor = as_tensor(entry, path)
    if tensor.dim() == 0 and not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        # whole numbers may steer the program, so each instance has its own
        device = device_name(tensor.device)
        return InputColumn(path, [tensor] * count, tensor.dtype, device, [()])
    return SharedTensor(path, tensor)


def as_tensor(leaf: Any, path: str) -> torch.Tensor:
    """A tensor or a number as a tensor; anything else is refused."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, bool | int | float | complex):
        return torch.tensor(leaf)
    raise ArgumentError(
        report(
            "This argument cannot be traced.",
            where=user_line(),
            facts=[
                ("argument", f"{path}   {type(leaf).__name__}"),
                ("allowed", "tensors, numbers, and dicts, tuples, lists or dataclasses of these"),
            ],
            todo="Turn a Python tree into a ps.data.Tree, mark a constant with ps.static, "
            "or run eager code with ps.map.",
        )
    )


def _spread_columns(column: Spread, path: str) -> tuple[list[Any], Any]:
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
    rows: Sequence[Sequence[Any]] | None = fields_of_tensors(values)
    if rows is not None:
        paths = _paths_of_fields(type(first), path)  # type: ignore[arg-type]
    else:
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


def fields_of_tensors(values: Sequence[Any]) -> list[tuple[torch.Tensor, ...]] | None:
    """The leaves of each value where all are of one dataclass with tensors for fields, quickly;
    None for others.
    """
    cls = type(values[0])
    fields = tuple(getattr(cls, "__dataclass_fields__", ()))
    if not fields or set(map(type, values)) != {cls}:
        return None
    if len(fields) == 1:
        rows: list[Any] = [(getattr(value, fields[0]),) for value in values]
    else:
        rows = list(map(attrgetter(*fields), values))
    kinds = set(map(type, chain.from_iterable(rows)))
    return rows if all(issubclass(kind, torch.Tensor) for kind in kinds) else None


def _input_column(values: list[Any], path: str) -> Any:
    first = values[0]
    if is_static(first):
        for number, value in enumerate(values):
            if not _same_static(first, value):
                raise _static_clash(path, first, number, value)
        return first
    tensors = [as_tensor(value, path) for value in values] if _has_others(values) else values
    dtype, device = tensors[0].dtype, tensors[0].device
    if len(set(map(_DTYPE, tensors))) > 1 or len(set(map(_DEVICE, tensors))) > 1:
        for number, tensor in enumerate(tensors):
            if tensor.dtype != dtype or tensor.device != device:
                raise _type_clash(path, tensors[0], number, tensor)
    shapes = list(map(_SHAPE, tensors))
    distinct = list(map(tuple, dict.fromkeys(shapes)))
    return InputColumn(
        path, tensors, dtype, device_name(device), distinct, shapes if len(distinct) > 1 else None
    )


def _has_others(values: list[Any]) -> bool:
    """Whether not all are tensors."""
    return not all(issubclass(kind, torch.Tensor) for kind in set(map(type, values)))


def _same_static(left: Any, right: Any) -> bool:
    return static_key(left) == static_key(right)


def _rows(column: InputColumn, numbers: Sequence[int]) -> InputColumn:
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


def _type_clash(path: str, first: Any, number: int, value: Any) -> ColumnError:
    return ColumnError(
        report(
            f"map: instance {number} has another type than the first.",
            where=user_line(),
            facts=[
                ("instance 0", f"{path}   {describe(first)}"),
                (f"instance {number}", f"{path}   {describe(value)}"),
            ],
            todo="Convert all instances to one dtype and device.",
        )
    )


def _static_clash(path: str, first: Any, number: int, value: Any) -> ColumnError:
    return ColumnError(
        report(
            f"map: instance {number} has another static value than the first.",
            where=user_line(),
            facts=[
                ("instance 0", f"{path}   {first!r}"),
                (f"instance {number}", f"{path}   {value!r}"),
            ],
            todo="Map over the instances of each static value separately.",
        )
    )
