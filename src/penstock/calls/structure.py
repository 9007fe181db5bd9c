"""Nested values as flat lists of leaves and back.

The one place that uses torch's private pytree module. Nodes are dict, tuple, list, NamedTuple,
every dataclass and whatever else is registered with torch. Dataclasses are registered when first
met; they are put back field by field, without running `__init__`. Everything else, None included,
is a leaf. This module does not know what a leaf may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils import _pytree as pytree

#: The nesting of a value without its leaves; comparable and hashable.
Structure = pytree.TreeSpec


class StructureMismatchError(Exception):
    """A value does not have the expected structure. Callers turn it into an error with names."""


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of `value` in order, and what is left without them."""
    return pytree.tree_flatten(value, is_leaf=_register_dataclass)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The value with this structure and these leaves."""
    return pytree.tree_unflatten(leaves, structure)


def flatten_like(structure: Structure, value: Any) -> list[Any]:
    """The leaves of `value` in the order of `structure`; the order of dict keys does not matter."""
    flatten(value)
    try:
        leaves = structure.flatten_up_to(value)
    except ValueError as error:
        raise StructureMismatchError(str(error)) from None
    if not all(is_leaf(leaf) for leaf in leaves):
        raise StructureMismatchError("a leaf was expected where the value has a container")
    return leaves


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `fn` applied to each leaf."""
    leaves, structure = flatten(value)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def is_leaf(value: Any) -> bool:
    """Whether `value` is not a container."""
    _register_dataclass(value)
    return pytree.tree_is_leaf(value)


def leaf_paths(value: Any, name: str) -> list[str]:
    """How a user would write each leaf of `value`, e.g. `state['hidden'][0]`, in order."""
    flatten(value)
    try:
        keyed, _ = pytree.tree_flatten_with_path(value)
    except ValueError:  # a registered type that did not say how to name its children
        return [f"{name}, leaf {number}" for number in range(len(pytree.tree_leaves(value)))]
    return [name + pytree.keystr(path) for path, _ in keyed]


def _register_dataclass(value: Any) -> bool:
    """Make the dataclass of `value` a node if it is none yet. Never a leaf, so always False."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    cls = type(value)
    if cls not in pytree.SUPPORTED_NODES:
        names = tuple(field.name for field in dataclasses.fields(cls))
        pytree.register_pytree_node(
            cls,
            lambda node: ([getattr(node, name) for name in names], names),
            lambda children, _: _rebuild(cls, names, children),
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}.{id(cls)}",
            flatten_with_keys_fn=lambda node: (
                [(pytree.GetAttrKey(name), getattr(node, name)) for name in names],
                names,
            ),
        )
    return False


def _rebuild(cls: type, names: tuple[str, ...], children: Iterable[Any]) -> Any:
    node: Any = object.__new__(cls)
    for name, child in zip(names, children, strict=True):
        object.__setattr__(node, name, child)
    return node
