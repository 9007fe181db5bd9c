"""What is known of the tensors that the code of a launch takes, one by one and in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor, which is contiguous."""

    dtype: torch.dtype
    #: Without dimension 0, where that is free.
    shape: tuple[int, ...]
    #: Whether there is a dimension 0 that differs from launch to launch.
    is_free: bool
    #: Whether it is the number of rows.
    has_rows: bool


def arguments_of(code: LaunchCode) -> tuple[Argument, ...]:
    """The tensors that such code takes."""
    return tuple(
        argument
        for part in (*code.parts, *code.results)
        if part is not None
        for argument in _of_part(part)
    )


def _of_part(part: Part | Written) -> Iterator[Argument]:
    if isinstance(part, Written) or part.origin is Origin.GATHERED:
        row = part.shape if isinstance(part, Written) else part.stored
        yield Argument(part.dtype, row, is_free=True, has_rows=False)
        yield Argument(torch.int64, (), is_free=True, has_rows=True)
        if isinstance(part, Written) and part.is_merged:
            yield Argument(torch.bool, (), is_free=True, has_rows=True)
    else:
        is_given = part.origin is Origin.GIVEN
        yield Argument(part.dtype, part.shape, is_free=is_given, has_rows=is_given)
