"""The one place where data types become pytree nodes of torch.

Rebuilding a node calls the class with the leaves it is given, whatever they are (traced values,
shapes, None), so a registered class must not check its fields when it is constructed.
"""

from __future__ import annotations

from typing import TypeVar

from torch.utils import _pytree

T = TypeVar("T")


def register_fields_as_leaves(cls: type[T]) -> type[T]:
    """Class decorator: make a dataclass a pytree node whose children are its fields, in order."""
    _pytree.register_dataclass(cls)
    return cls
