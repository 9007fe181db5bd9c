"""Arguments of a call or a map as one batch: for each leaf a column, a shared tensor or a constant.

Arguments whose types were seen before need not be looked at in full: their layout is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.api.columns import (
    Collected,
    InputColumn,
    SharedTensor,
    Spread,
    as_tensor,
    fields_of_tensors,
    rows_of_column,
    spread_columns,
)
from penstock.api.markers import Shared
from penstock.calls.structure import Structure, flatten, leaf_paths, unflatten
from penstock.capture.static import is_static
from penstock.capture.worlds import device_name


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
            rows_of_column(leaf, numbers) if isinstance(leaf, InputColumn) else leaf
            for leaf in self.leaves
        ]
        names = numbers if self.numbers is None else [self.numbers[n] for n in numbers]
        return Batch(self.structure, leaves, len(numbers), names)


def one_instance(args: Any, kwargs: Any, names: Sequence[str]) -> Batch:
    """The arguments of a plain call, already bound."""
    return _batch(_Bound(args, kwargs, names, 1, _single_leaf))


def many_instances(args: Any, kwargs: Any, names: Sequence[str], count: int) -> Batch:
    """The arguments of a map, already bound: `Spread`s are columns, everything else is shared."""
    return _batch(
        _Bound(args, kwargs, names, count, lambda leaf, path: _shared_leaf(leaf, path, count))
    )


@dataclass(slots=True)
class _Bound:
    """Arguments bound to parameters with these names."""

    args: Any
    kwargs: Any
    names: Sequence[str]
    count: int
    #: What becomes of a leaf that is no column, by its path.
    take: Callable[[Any, str], Any]

    def paths(self) -> list[str]:
        """How a user would name each leaf."""
        return argument_paths(self.args, self.kwargs, self.names)

    def batch(self, structure: Structure, leaves: list[Any]) -> Batch:
        """The batch with these leaves."""
        return Batch(structure, leaves, self.count, range(self.count) if self.count > 1 else None)


class _Layout(NamedTuple):
    """What bound arguments of the same types have in common."""

    structure: Structure
    paths: list[str]


#: Layouts that are remembered; most functions have one or two.
MOST_LAYOUTS = 1024
_layouts: dict[Hashable, _Layout] = {}

#: Arguments that are one leaf each.
_LEAVES = frozenset((torch.Tensor, nn.Parameter, bool, int, float, complex))


def _batch(bound: _Bound) -> Batch:
    key = _likeness(bound.args, bound.kwargs, bound.names)
    layout = _layouts.get(key) if key is not None else None
    if layout is not None:
        leaves = []
        entries = (*bound.args, *bound.kwargs.values())
        for entry, path in zip(entries, layout.paths, strict=True):
            if type(entry) is Spread:
                leaves.extend(spread_columns(entry, path)[0])
            elif type(entry) is Collected:
                leaves.extend(entry.leaves)
            else:
                leaves.append(bound.take(entry, path))
        return bound.batch(layout.structure, leaves)
    batch = _batch_of_any(bound)
    if key is not None and len(_layouts) < MOST_LAYOUTS:
        _layouts[key] = _Layout(batch.structure, bound.paths())
    return batch


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
        elif kind is Collected:
            if entry.kind is None:
                return None
            kinds.append(entry.kind)
        elif kind in _LEAVES:
            kinds.append(torch.Tensor)
        else:
            return None
    return (*kinds, len(args), *kwargs, *names)


def _batch_of_any(bound: _Bound) -> Batch:
    """Arguments of any structure."""
    leaves: list[Any] = []
    examples: list[Any] = []
    entries, outer = flatten((bound.args, bound.kwargs))
    for entry, path in zip(entries, bound.paths(), strict=True):
        columns, example = _columns(entry, path, bound)
        leaves.extend(columns)
        examples.append(example)
    _, structure = flatten(unflatten(outer, examples))
    return bound.batch(structure, leaves)


def _columns(entry: Any, path: str, bound: _Bound) -> tuple[list[Any], Any]:
    """What becomes of the leaves of an argument, and a value of its structure."""
    if isinstance(entry, Spread):
        return spread_columns(entry, path)
    if isinstance(entry, Collected):
        return entry.leaves, entry.example
    if isinstance(entry, Shared):
        inner, _ = flatten(entry.value)
        pairs = zip(inner, leaf_paths(entry.value, path), strict=True)
        return [_shared_leaf(leaf, name, bound.count) for leaf, name in pairs], entry.value
    return [bound.take(entry, path)], entry


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
