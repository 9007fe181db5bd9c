"""A breakdown holds medians of profiled calls."""

from __future__ import annotations

import torch
from torch import Tensor

import penstock as ps
from benchmarks.breakdown import PARTS, break_down


@ps.function
def doubled(x: Tensor) -> Tensor:
    return x * 2


def test_steps_are_counted_and_times_are_medians() -> None:
    prepared: list[None] = []
    rows = [torch.ones(3, requires_grad=True) for _ in range(5)]
    parts = break_down(
        lambda: doubled.map(rows, out="stack"),
        rounds=3,
        prepare=lambda: prepared.append(None),
        backward=lambda output: output.sum().backward(),
    )
    assert len(prepared) == 3
    assert (parts.steps, parts.launches, parts.width) == (5, 1, 5)
    assert parts.recording == 0
    assert parts.backward > 0
    assert len(parts.milliseconds()) == len(PARTS)


def test_without_a_backward_part_it_takes_no_time() -> None:
    rows = [torch.ones(3)] * 2
    assert break_down(lambda: doubled.map(rows), rounds=1).backward == 0


def test_eager_code_has_time_for_recording() -> None:
    parts = break_down(lambda: ps.map(lambda x: x * 2, [torch.ones(3)] * 4), rounds=1)
    assert parts.recording > 0
    assert parts.steps == 4
    assert parts.recording_microseconds > 0
