"""The branching layers of the baselines as a program for one vector."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import penstock as ps
from benchmarks.baselines.branching import BranchingLayers


def branching_program(model: BranchingLayers) -> ps.Function:
    """A function of one vector: what the last layer makes of it."""

    @ps.function
    def layers(x: Tensor) -> Any:
        for number in range(len(model.gates)):
            x = _layer(model, number, x)
        return x

    return layers


def _layer(model: BranchingLayers, number: int, x: Tensor) -> Any:
    return ps.cond(
        model.takes_wide(number, x),
        lambda x: model.wide_layer(number, x),
        lambda x: model.narrow_layer(number, x),
        (x,),
    )
