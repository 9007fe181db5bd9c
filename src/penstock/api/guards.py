"""What a trace depends on besides its arguments, as named values that can be compared at every
call.

These are torch's global settings, and the plain values (numbers, strings, None) that the function
can reach: `training` flags and attributes of modules, closure cells and globals. Anything else is
taken to stay the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from types import NoneType
from typing import Any

import torch
from torch import nn

from penstock.capture.captures import reachable

SIMPLE_TYPES = (bool, int, float, str, NoneType)


class Guards:
    """The plain values within reach of one function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def values(self) -> dict[str, Hashable]:
        """Each value by the name that a user would give it."""
        found: dict[str, Hashable] = dict(_settings())
        seen: set[int] = set()
        for name, value in reachable(self._function):
            if isinstance(value, SIMPLE_TYPES):
                found[name] = (type(value).__name__, value)
            elif isinstance(value, nn.Module) and id(value) not in seen:
                for path, module in value.named_modules(prefix=name):
                    seen.add(id(module))
                    found.update(_attributes(path, module))
        return found


def _settings() -> Iterator[tuple[str, Hashable]]:
    yield "the default dtype", str(torch.get_default_dtype())
    for device in ("cpu", "cuda"):
        enabled = torch.is_autocast_enabled(device)
        dtype = str(torch.get_autocast_dtype(device)) if enabled else ""
        yield f"autocast on {device}", (enabled, dtype)


def _attributes(path: str, module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    for name, value in vars(module).items():
        if isinstance(value, SIMPLE_TYPES) and not name.startswith("_"):
            yield f"{path}.{name}", (type(value).__name__, value)
