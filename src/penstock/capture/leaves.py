"""What a value inside a program may be.

Tensors and TensorArrays are values. Python numbers become 0-d tensors. None, strings, bytes and
enums are static: they travel unchanged. Anything else is refused.
"""

from __future__ import annotations

from enum import Enum
from types import NoneType
from typing import Any

import torch

from penstock.calls.structure import flatten, leaf_paths, unflatten
from penstock.capture.location import user_line
from penstock.capture.tensor_array import TensorArray
from penstock.capture.tensor_types import type_of
from penstock.errors import ArgumentError, report

STATIC_TYPES = (NoneType, str, bytes, Enum)


def as_values(value: Any, what: str, name: str) -> Any:
    """`value` with Python numbers as 0-d tensors. `what` and `name` say in an error what it is."""
    leaves, structure = flatten(value)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, Enum):
            leaves[number] = torch.tensor(leaf)
        elif not isinstance(leaf, (torch.Tensor, TensorArray, *STATIC_TYPES)):
            raise _refusal(leaf, what, leaf_paths(value, name)[number])
    return unflatten(structure, leaves)


def same_type(left: Any, right: Any) -> bool:
    """Whether two leaves have one type: dtype, shape and device; or are the same static value."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return type_of(left) == type_of(right)
    if isinstance(left, TensorArray) or isinstance(right, TensorArray):
        return isinstance(left, TensorArray) and isinstance(right, TensorArray)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return False
    return bool(left == right)


def _refusal(leaf: Any, what: str, path: str) -> ArgumentError:
    return ArgumentError(
        report(
            f"{what} cannot hold this type of value.",
            where=user_line(),
            facts=[
                ("value", f"{path}   {type(leaf).__name__}"),
                (
                    "allowed",
                    "tensors, numbers, TensorArrays, None, strings, enums and "
                    "dict, tuple, list, NamedTuple or dataclass of these",
                ),
            ],
            todo="Pass or return its tensors instead; other objects can be closed over.",
        )
    )
