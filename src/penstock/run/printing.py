"""A torch operation that prints its operand when it runs.

It gives back True, so that a program has something to need; gradients do not pass through it.
Batched, it prints a line for each row of its launch. It is silent while batched forms are built and
compared, and keeps launches out of CUDA graphs, which could not print.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from penstock.run.capturing import refuse_while_capturing
from penstock.run.recording import building_time


@torch.library.custom_op("penstock::print", mutates_args=())
def print_value(x: Tensor, label: str) -> Tensor:
    """Print one value."""
    _print([x], label)
    return x.new_ones((), dtype=torch.bool)


@torch.library.custom_op("penstock::print_rows", mutates_args=())
def print_rows(x: Tensor, label: str) -> Tensor:
    """Print each row of a batch."""
    _print(x.unbind(0), label)
    return x.new_ones(x.shape[:1], dtype=torch.bool)


def _print(values: Any, label: str) -> None:
    refuse_while_capturing()
    if building_time.depth == 0:
        for value in values:
            print(*([label] if label else []), value)


@print_value.register_fake
def _(x: Tensor, label: str) -> Tensor:
    return x.new_empty((), dtype=torch.bool)


@print_rows.register_fake
def _(x: Tensor, label: str) -> Tensor:
    return x.new_empty(x.shape[:1], dtype=torch.bool)


@print_value.register_vmap
def _(info: Any, in_dims: Any, x: Tensor, label: str) -> tuple[Tensor, int | None]:
    if in_dims[0] is None:
        return print_value(x, label), None
    return print_rows(x.movedim(in_dims[0], 0), label), 0


@print_rows.register_vmap
def _(info: Any, in_dims: Any, x: Tensor, label: str) -> tuple[Tensor, int]:
    rows = x.movedim(in_dims[0], 0)
    return print_rows(rows.flatten(0, 1), label).view(rows.shape[:2]), 0
