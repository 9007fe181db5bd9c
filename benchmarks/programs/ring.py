"""Loops with a trivial body over several ranks: each rank carries one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import penstock as ps


def counted(ranks: int) -> Callable[..., Any]:
    """Every rank counts on its own; the number of iterations is an input."""

    @ps.function
    def loop(steps: Tensor, *numbers: Tensor) -> tuple[Tensor, ...]:
        def body(k: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
            return (k + 1, *_step_all(carried))

        return ps.while_loop(lambda k, *_: k < steps, body, (0, *numbers))[1:]  # type: ignore[no-any-return]

    return loop


def steered(ranks: int) -> Callable[..., Any]:
    """Every rank counts on its own, until the number of rank 0 is large enough."""

    @ps.function
    def loop(end: Tensor, *numbers: Tensor) -> tuple[Tensor, ...]:
        def go_on(*carried: Tensor) -> Tensor:
            with ps.device("rank:0"):
                return carried[0] < end

        return ps.while_loop(go_on, lambda *carried: tuple(_step_all(carried)), numbers)  # type: ignore[no-any-return]

    return loop


def in_step(ranks: int) -> Callable[..., Any]:
    """The same until the smallest number of all is large enough: no rank begins with an iteration
    before all have ended the one before.
    """

    @ps.function
    def loop(end: Tensor, *numbers: Tensor) -> tuple[Tensor, ...]:
        def go_on(*carried: Tensor) -> Tensor:
            with ps.device("rank:0"):
                return torch.stack(carried).amin() < end

        return ps.while_loop(go_on, lambda *carried: tuple(_step_all(carried)), numbers)  # type: ignore[no-any-return]

    return loop


def _step_all(numbers: Any) -> list[Tensor]:
    """One trivial step on each rank; not one that the host could do."""
    found = []
    for rank, number in enumerate(numbers):
        with ps.device(f"rank:{rank}"):
            found.append(torch.relu(number) + 1.0)
    return found
