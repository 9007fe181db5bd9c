"""A stack of layers, each one of two by the sign of a computed gate, in plain torch.

`per_sample` branches in Python; `grouped` computes the rows of either kind of a layer together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BranchingLayers(nn.Module):
    """The weights, the gates and the two kinds of layer; all take one vector or rows."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, 1) for _ in range(depth))
        self.narrow = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.wide = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def takes_wide(self, number: int, x: Tensor) -> Tensor:
        """Which kind a layer is for x."""
        value: Tensor = self.gates[number](x).squeeze(-1)
        return value > 0

    def narrow_layer(self, number: int, x: Tensor) -> Tensor:
        """One product."""
        return x + torch.tanh(self.narrow[number](x))

    def wide_layer(self, number: int, x: Tensor) -> Tensor:
        """Two larger products, scaled by the gate, which so learns."""
        return x + torch.sigmoid(self.gates[number](x)) * torch.tanh(self.wide[number](x))


def per_sample(model: BranchingLayers, rows: Tensor) -> Tensor:
    """One row after the other."""
    return torch.stack([_layers(model, x) for x in rows.unbind(0)])


def _layers(model: BranchingLayers, x: Tensor) -> Tensor:
    for number in range(len(model.gates)):
        if model.takes_wide(number, x):
            x = model.wide_layer(number, x)
        else:
            x = model.narrow_layer(number, x)
    return x


def grouped(model: BranchingLayers, x: Tensor) -> Tensor:
    """All rows at once: those of either kind are gathered, computed and put back."""
    for number in range(len(model.gates)):
        is_wide = model.takes_wide(number, x)
        wide, narrow = is_wide.nonzero().squeeze(-1), (~is_wide).nonzero().squeeze(-1)
        parts = [
            model.wide_layer(number, x.index_select(0, wide)),
            model.narrow_layer(number, x.index_select(0, narrow)),
        ]
        x = torch.cat(parts).index_select(0, torch.argsort(torch.cat([wide, narrow])))
    return x
