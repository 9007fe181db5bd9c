"""Functions of our own among the torch calls of programs.

Some stand in for torch calls which change their tensors: a program holds none.

Each is a plain function of tensors without side effects, named in `torch_names.OWN_FUNCTIONS`.
"""

from __future__ import annotations

from typing import Any

import torch

from penstock.calls.structure import flatten
from penstock.calls.torch_names import resolve


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """A copy of `tensor` after `tensor[index] = value`."""
    copy = tensor.clone()
    copy[index] = value
    return copy


def write_part(
    tensor: torch.Tensor, value: torch.Tensor, name: str, args: Any, kwargs: Any, leaf: int
) -> torch.Tensor:
    """A copy of `tensor` in which a view of it holds `value`.

    The view is the tensor number `leaf` that the torch call of that name gives for `args`, among
    which `tensor` itself stands for the copy.
    """
    copy = tensor.clone()
    taken = [copy if item is tensor else item for item in args]
    named = {key: copy if item is tensor else item for key, item in kwargs}
    views, _ = flatten(resolve(name)(*taken, **named))
    views[leaf].copy_(value)
    return copy


def copy_into(tensor: torch.Tensor, source: Any) -> torch.Tensor:
    """What `tensor.copy_(source)` leaves in `tensor`; numbers too."""
    made = torch.as_tensor(source, dtype=tensor.dtype, device=tensor.device)
    return made.expand(tensor.shape).clone()


def follow(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` on the device of `like`, wherever the program runs."""
    return tensor.to(like.device)
