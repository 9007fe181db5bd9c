"""Facts about modules on which a trace of them depends, to be compared as a whole."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from penstock.capture.lazy.guarded_values import SIMPLE_TYPES, contents, mark, tensor_fact

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TORCH_OWN = frozenset(vars(nn.Module())) - {"training"}


def has_hooks(module: nn.Module) -> bool:
    """Whether calls of the module run hooks of its own."""
    state = vars(module)
    return bool(
        state.get("_forward_hooks")
        or state.get("_forward_pre_hooks")
        or state.get("_backward_hooks")
        or state.get("_backward_pre_hooks")
    )


def module_facts(modules: Iterable[nn.Module]) -> Iterator[Hashable]:
    """Of the modules and those inside them: what a trace of them depends on."""
    seen: set[int] = set()
    first: dict[int, int] = {}
    for root in modules:
        for module in root.modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield id(module), type(module)
            state = vars(module)
            yield tuple(len(state[name]) for name in _HOOKS)
            yield tuple((name, id(inner)) for name, inner in state["_modules"].items())
            for tensors in (state["_parameters"], state["_buffers"]):
                for name, tensor in tensors.items():
                    yield name, _tensor_place(tensor, first)
            for name, value in state.items():
                if _is_users(name):
                    yield name, _attribute_fact(value, first)


def _is_users(name: str) -> bool:
    """Whether an attribute of a module is neither torch's nor ours."""
    return name not in _TORCH_OWN and not name.startswith("_penstock")


def _tensor_place(tensor: torch.Tensor | None, first: dict[int, int]) -> Hashable:
    """The type of a tensor, and where it was met first: tied tensors are one input."""
    if tensor is None:
        return None
    return tensor_fact(tensor), first.setdefault(id(tensor), len(first))


def _attribute_fact(value: Any, first: dict[int, int], depth: int = 3) -> Hashable:
    if isinstance(value, SIMPLE_TYPES):
        return mark(value)
    if isinstance(value, torch.Tensor) and depth == 3:
        return _tensor_place(value, first)
    if isinstance(value, FunctionType | BuiltinFunctionType | nn.Module | torch.Tensor):
        return id(value)
    if isinstance(value, list | tuple | dict) and depth:
        items = contents(value)
        return type(value), tuple(_attribute_fact(item, first, depth - 1) for item in items)
    return None


def attribute_names(modules: Iterable[nn.Module]) -> Iterator[str]:
    """The names of everything that the facts are about."""
    for root in modules:
        for module in root.modules():
            yield from filter(_is_users, vars(module))
            yield from module._parameters
            yield from module._buffers
            yield from module._modules
