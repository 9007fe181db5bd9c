"""Values that are not traced: what `ps.static` marks, and what is static by its type."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import torch

from penstock.capture.leaves import STATIC_TYPES


class Static:
    """A value that a program takes as it is; another value means another trace."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"static({self.value!r})"


def is_static(leaf: Any) -> bool:
    """Whether a leaf is part of the signature and not of the data."""
    return isinstance(leaf, (Static, *STATIC_TYPES))


def unwrap_static(leaf: Any) -> Any:
    """What the traced function gets for a leaf that is not traced."""
    return leaf.value if isinstance(leaf, Static) else leaf


def static_key(leaf: Any) -> Hashable:
    """Equal for leaves for which one trace serves."""
    if isinstance(leaf, torch.Tensor):
        return "tensor", id(leaf)
    return _typed(unwrap_static(leaf))


def _typed(value: Any) -> Hashable:
    """A key that tells 1 from 1.0 and True, 0.0 from -0.0, and sees into containers."""
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(_typed(item) for item in value)
    if isinstance(value, dict):
        return dict, tuple((_typed(key), _typed(item)) for key, item in value.items())
    try:
        hash(value)
    except TypeError:
        return _of_unhashable(value)
    return type(value), value


def _of_unhashable(value: Any) -> Hashable:
    """A dataclass by its fields, a set by its items; of anything else the object itself."""
    if dataclasses.is_dataclass(value):
        named = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return type(value), tuple((name, _typed(item)) for name, item in named)
    if isinstance(value, set):
        return set, frozenset(map(_typed, value))
    return type(value), _Itself(value)


class _Itself:
    """An object as a key; held, so that no other has its identity."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
