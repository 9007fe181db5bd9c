"""What a trace depends on besides its arguments, as named values that can be compared at every
call.

These are torch's global settings, and what the function can reach: plain values (numbers, strings,
None), tensors and functions in closure cells, globals and containers; of modules which they are,
their plain attributes, their hooks, and which of their parameters are one. Anything else is taken
to stay the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import torch
from torch import nn

from penstock.capture.active import state
from penstock.capture.captures import reachable
from penstock.capture.worlds import dtype_name

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
            if isinstance(value, _WATCHED):
                found[name] = _mark(value)
            elif isinstance(value, nn.Module) and id(value) not in seen:
                for path, module in value.named_modules(prefix=name):
                    seen.add(id(module))
                    found.update(_attributes(path, module))
                found[f"the parameters that {name} shares"] = _ties(value)
        return found


def _settings() -> Iterator[tuple[str, Hashable]]:
    yield "the default dtype", dtype_name(torch.get_default_dtype())
    yield "the device", "" if state.device is None else str(state.device)
    for device in ("cpu", "cuda"):
        enabled = torch.is_autocast_enabled(device)
        dtype = str(torch.get_autocast_dtype(device)) if enabled else ""
        yield f"autocast on {device}", (enabled, dtype)


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_CONTAINERS = (list, tuple, dict)

#: What is compared from call to call.
_WATCHED = (*SIMPLE_TYPES, torch.Tensor, *_FUNCTIONS)


#: The types whose values are marked by themselves, and how.
_PLAIN = {kind: kind.__name__ for kind in (bool, int, str, NoneType)}


def _mark(value: Any) -> Hashable:
    """Equal as long as a trace may take the value for the same."""
    if isinstance(value, float):
        return "float", repr(value)
    if isinstance(value, SIMPLE_TYPES):
        return type(value).__name__, value
    return type(value).__name__, id(value)


def _attributes(path: str, module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    yield f"the module {path}", id(module)
    yield f"the hooks of {path}", (len(module._forward_hooks), len(module._forward_pre_hooks))
    for name, value in vars(module).items():
        if type(value) in _PLAIN:
            yield f"{path}.{name}", (_PLAIN[type(value)], value)
        elif isinstance(value, SIMPLE_TYPES):
            yield f"{path}.{name}", _mark(value)
        elif name in _TORCH_OWN:
            continue
        elif isinstance(value, _FUNCTIONS):
            yield f"{path}.{name}", id(value)
        elif isinstance(value, _CONTAINERS):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                if isinstance(item, _WATCHED):
                    yield f"{path}.{name}[{key!r}]", _mark(item)


#: What every module has of itself: looked up at each call, or told by the hooks above.
_TORCH_OWN = frozenset(vars(nn.Module()))


def _ties(module: nn.Module) -> Hashable:
    """Which parameters are one tensor, by the order in which they come."""
    first: dict[int, int] = {}
    parameters = module.named_parameters(remove_duplicate=False)
    return tuple(first.setdefault(id(p), number) for number, (_, p) in enumerate(parameters))
