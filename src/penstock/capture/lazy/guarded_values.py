"""Values that a unit may depend on, and when two of them are the same to it.

Simple values are compared by type and value, everything else by identity. Recorded tensors are
never kept: what is remembered of one is only that there was one.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from types import FunctionType, NoneType
from typing import Any, NamedTuple

import torch
from torch import nn

#: Values that a unit may depend on; they are compared by type and value.
SIMPLE_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    NoneType,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    range,
    slice,
    type(Ellipsis),
)

#: Stands for a name that has no value.
ABSENT = object()

#: Where a wrapper that stands in for a function keeps the function itself.
ORIGINAL = "_penstock_original"


def original_of(value: Any) -> Any:
    """The function behind a wrapper of ours; anything else as it is."""
    if isinstance(value, FunctionType):
        return value.__dict__.get(ORIGINAL, value)
    return value


class TensorFact(NamedTuple):
    """What a trace depends on of a tensor that is looked up at every call."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device


class Foreign(NamedTuple):
    """There was a tensor of a kind that units cannot read."""

    kind: type


#: Tensors that a unit may read by reference.
PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)


def tensor_fact(tensor: torch.Tensor) -> TensorFact:
    """The fact about a tensor."""
    return TensorFact(type(tensor), tensor.dtype, tuple(tensor.shape), tensor.device)


def kept(value: Any) -> Any:
    """What is remembered of a value."""
    if isinstance(value, torch.Tensor) and type(value) not in PLAIN_TENSORS:
        return Foreign(type(value))
    return value


def kept_attribute(value: Any) -> Any:
    """The same for an attribute of a module: which tensor it is, is looked up at every call."""
    return tensor_fact(value) if type(value) in PLAIN_TENSORS else kept(value)


def is_same(now: Any, before: Any) -> bool:
    """Whether a trace may take `now` for what was kept before."""
    if now is before:
        return True
    if isinstance(before, TensorFact):
        return isinstance(now, torch.Tensor) and tensor_fact(now) == before
    if isinstance(before, Foreign):
        return type(now) is before.kind
    if isinstance(before, SIMPLE_TYPES):
        return mark(now) == mark(before)
    return original_of(now) is original_of(before)


def mark(value: Any) -> Hashable:
    """Equal for simple values that are one; objects are themselves."""
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if isinstance(value, SIMPLE_TYPES):
        return type(value), value if value.__hash__ is not None else repr(value)
    return type(value), id(value)


def contents(container: Any) -> tuple[Any, ...]:
    """The items of a container, for dicts keys and values."""
    if isinstance(container, dict):
        return (*container.keys(), *container.values())
    return tuple(container)


def has_items(container: Any, items: tuple[Any, ...]) -> bool:
    """Whether a container has the items that were kept."""
    now = contents(container)
    if len(now) != len(items):
        return False
    return all(one is other or is_same(one, other) for one, other in zip(now, items))
