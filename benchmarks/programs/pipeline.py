"""Loops whose bodies are chains of stages, each on a device of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import penstock as ps
from benchmarks.baselines.lstm import LSTM, State


def on(device: str | None) -> AbstractContextManager[None]:
    """A place for what is traced inside; None leaves it open."""
    return nullcontext() if device is None else ps.device(device)


def staged_loop(
    stages: Sequence[nn.Module], devices: Sequence[str | None], parallel_iterations: int | None
) -> ps.Function:
    """A function of a value and a number of iterations: each stage has a state of its own, and adds
    to it what the stage before has made.
    """

    def body(i: Any, states: tuple[Tensor, ...]) -> Any:
        made = torch.zeros_like(states[0])
        states_after = []
        for stage, device, state in zip(stages, devices, states, strict=True):
            with on(device):
                made = stage(state + made)
            states_after.append(made)
        return i + 1, tuple(states_after)

    @ps.function
    def run(x: Tensor, n: Any) -> Any:
        carried = (0, (x,) * len(stages))
        return ps.while_loop(
            lambda i, states: i < n, body, carried, parallel_iterations=parallel_iterations
        )[1][-1]

    return run


def stacked_lstm(layers: Sequence[LSTM], devices: Sequence[str | None]) -> ps.Function:
    """A function of one sequence: the state h of the last layer after the last step."""

    def step(states: list[State], x: Tensor) -> Any:
        after = []
        for layer, device, state in zip(layers, devices, states, strict=True):
            with on(device):
                x, c = layer.step(state, x)
            after.append((x, c))
        return after

    @ps.function
    def last(sequence: Tensor) -> Any:
        start = [layer.start() for layer in layers]
        return ps.foldl(step, sequence, start)[-1][0]

    return last
