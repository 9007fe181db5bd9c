"""Loops that devices run as a whole, run by Python where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import penstock as ps
from penstock.run import whole_loops
from penstock.run.native import choice, whole_block


class PythonWhile:
    """Does what a `WhileGraph` does."""

    def __init__(
        self,
        head: Callable[[], torch.Tensor],
        body: Callable[[], torch.Tensor],
        device: torch.device,
        words: torch.Tensor,
    ) -> None:
        self.head, self.body = head, body
        self.iterations = 0
        head()
        body()

    def launch(self) -> None:
        goes_on = self.head()
        while goes_on:
            goes_on = self.body()
            self.iterations += 1


@contextmanager
def whole_loops_in_python() -> Iterator[list[PythonWhile]]:
    """Functions that are first called inside run such loops as a whole; gives the loops."""
    made: list[PythonWhile] = []

    def make(*arguments: object) -> PythonWhile:
        made.append(PythonWhile(*arguments))  # type: ignore[arg-type]
        return made[-1]

    with ps.set_fusion("auto"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "WHOLE", ("whole cpu",))
        patch.setattr(whole_loops, "has_graphs", lambda devices: True)
        patch.setattr(whole_loops, "has_while_nodes", lambda: True)
        patch.setattr(whole_block, "WhileGraph", make)
        patch.setattr(whole_block, "shared_words", lambda: torch.zeros(2, dtype=torch.int64))
        patch.setattr(whole_block, "wait", lambda device, words: None)
        yield made
