"""Functions of our own among the torch calls of programs.

Some stand in for torch calls which change their tensors: a program holds none.

Each is a plain function of tensors without side effects, named in `torch_names.OWN_FUNCTIONS`.
"""

from __future__ import annotations

from typing import Any

import torch


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """A copy of `tensor` after `tensor[index] = value`."""
    copy = tensor.clone()
    copy[index] = value
    return copy


def copy_into(tensor: torch.Tensor, source: Any) -> torch.Tensor:
    """What `tensor.copy_(source)` leaves in `tensor`; numbers too."""
    made = torch.as_tensor(source, dtype=tensor.dtype, device=tensor.device)
    return made.expand(tensor.shape).clone()


def follow(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` on the device of `like`, wherever the program runs."""
    return tensor.to(like.device)
