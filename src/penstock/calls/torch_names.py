"""Names of torch functions: what a program stores instead of a callable, and the way back.

A name is the qualified one where torch can be asked for it (`torch.Tensor.add`,
`torch.Tensor.T.__get__`). Functions of this library that stand in for torch calls have names that
begin with "penstock."; they are imported when first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.overrides import resolve_name

#: Where each function of this library that a program may call lives: module and attribute.
OWN_FUNCTIONS = {
    "penstock.set_item": ("penstock.calls.own_functions", "set_item"),
    "penstock.write_part": ("penstock.calls.own_functions", "write_part"),
    "penstock.copy_into": ("penstock.calls.own_functions", "copy_into"),
    "penstock.follow": ("penstock.calls.own_functions", "follow"),
    **{
        f"penstock.random.{name}": ("penstock.run.random_bits", name)
        for name in ("uniform", "normal", "randint", "dropout")
    },
}

_own_names: dict[object, str] = {place: name for name, place in OWN_FUNCTIONS.items()}

#: Callables that no qualified name leads to, by the name they were given here.
_registered: dict[str, Callable[..., Any]] = {}


@cache
def name_of(function: Callable[..., Any]) -> str:
    """The name from which `resolve` finds `function` again."""
    for name in _candidates(function):
        if _finds(name, function):
            return name
    name = f"penstock.registered.{getattr(function, '__qualname__', 'function')}.{len(_registered)}"
    _registered[name] = function
    return name


@cache
def resolve(name: str) -> Callable[..., Any]:
    """The callable of that name."""
    if name in OWN_FUNCTIONS:
        module, attribute = OWN_FUNCTIONS[name]
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return found
    if name in _registered:
        return _registered[name]
    walked: Callable[..., Any] = _walk(name)
    return walked


def _candidates(function: Callable[..., Any]) -> list[str]:
    own = (getattr(function, "__module__", None), getattr(function, "__name__", None))
    if own in _own_names:
        return [_own_names[own]]
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return [f"torch.ops.{function}"]
    module = getattr(function, "__module__", None) or ""
    qualified = getattr(function, "__qualname__", "")
    listed = resolve_name(function)
    return [name for name in (listed, f"{module}.{qualified}", f"torch.{qualified}") if name]


def _finds(name: str, function: Callable[..., Any]) -> bool:
    if name in OWN_FUNCTIONS:
        return True
    try:
        return bool(_walk(name) == function)
    except (AttributeError, ImportError, ValueError):
        return False


def _walk(name: str) -> Any:
    """Follow the dots: modules are imported where they are not attributes yet."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=1):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[: number + 1]))
        found = getattr(found, part)
    return found
