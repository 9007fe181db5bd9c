"""The LSTM of the baselines as a program for one sequence."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import penstock as ps
from benchmarks.baselines.lstm import LSTM


def lstm_program(model: LSTM) -> ps.Function:
    """A function of one sequence: the state h after its last step."""

    @ps.function
    def last(sequence: Tensor) -> Any:
        return ps.foldl(model.step, sequence, model.start())[0]

    return last
