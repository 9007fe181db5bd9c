"""Tensors that a program reads by reference, and where to find them again at every call.

A tensor that belongs to a module within reach of the traced function is looked up by owner and
name, so that a replaced parameter is seen. Any other tensor is kept as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from penstock.capture.reach import Reach


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """One captured tensor."""

    #: How the user would write it, such as `self.cell.weight`.
    name: str
    #: The tensor itself; the current one is `fetch()`.
    tensor: torch.Tensor
    owner: nn.Module | None = None
    attribute: str = ""
    #: The position among the shared arguments of a call, for tensors that are given at each call.
    shared: int | None = None

    def fetch(self) -> torch.Tensor:
        """The tensor as it is now."""
        if self.owner is None:
            return self.tensor
        tensor: torch.Tensor | None = self.owner._parameters.get(self.attribute)
        return getattr(self.owner, self.attribute) if tensor is None else tensor


class Owners:
    """Which module and attribute each tensor within reach belongs to."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, nn.Module, str]] = {}
        self._seen: set[int] = set()
        #: Every module within reach, in the order found.
        self.modules: list[nn.Module] = []

    def add_function(self, function: Any) -> None:
        """Take in all modules that `function` can reach."""
        for path, module in Reach(function).modules:
            if id(module) not in self._seen:
                self._seen.add(id(module))
                self._add(path, module)

    def capture(self, tensor: torch.Tensor, number: int) -> Capture:
        """How to fetch `tensor` later."""
        place = self._places.get(id(tensor))
        if place is None or getattr(place[1], place[2], None) is not tensor:
            return Capture(f"tensor{number}", tensor)
        name, owner, attribute = place
        return Capture(name, tensor, owner, attribute)

    def _add(self, path: str, module: nn.Module) -> None:
        self.modules.append(module)
        tensors = {**module._parameters, **module._buffers}
        for attribute, tensor in (*tensors.items(), *vars(module).items()):
            if isinstance(tensor, torch.Tensor):
                self._places.setdefault(id(tensor), (f"{path}.{attribute}", module, attribute))
