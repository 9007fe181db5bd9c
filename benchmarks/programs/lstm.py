"""The LSTM of the baselines as programs for one sequence: three ways to write the loop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import penstock as ps
from benchmarks.baselines.lstm import LSTM, State


def lstm_program(model: LSTM) -> ps.Function:
    """A function of one sequence: the state h after its last step."""

    @ps.function
    def last(sequence: Tensor) -> Any:
        return ps.foldl(model.step, sequence, model.start())[0]

    return last


def scanned_lstm(model: LSTM, *rows: int) -> ps.Function:
    """The same through `scan`; `rows` for a program whose steps have rows already."""

    def step(state: State, x: Tensor) -> Any:
        return model.step(state, x), ()

    @ps.function
    def last(sequence: Tensor) -> Any:
        (h, _), _ = ps.scan(step, model.start(*rows), sequence)
        return h

    return last


def looping_lstm(model: LSTM, *rows: int) -> ps.Function:
    """The same as a plain `while`, converted from its source."""

    @ps.function
    def last(sequence: Tensor) -> Any:
        h, c = model.start(*rows)
        t = 0
        while t < sequence.shape[0]:
            h, c = model.step((h, c), sequence[t])
            t = t + 1
        return h

    return last
