"""Counts changes of modules, and of torch's default dtype, while recording scopes are open.

A trace of a module depends on its attributes, submodules, hooks and on which tensors it holds.
Looking at all of them at every call would cost more than the call, so writers of `nn.Module` are
watched instead: as long as the count stands still, what was checked before still holds. Writes
that go around these methods (`vars(module)[name] = value`) are seen by the next scope.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

#: Attributes that every module has, and on which calls depend.
_ALWAYS = frozenset(
    [
        "training",
        "forward",
        "_modules",
        "_parameters",
        "_buffers",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
    ]
)


class Changes:
    """How often something that a unit may depend on has changed."""

    def __init__(self) -> None:
        #: Never the same again after a change.
        self.count = 0
        #: Attributes whose writing counts, whatever the module.
        self.names = set(_ALWAYS)
        self._numbers = itertools.count(1)

    def add(self) -> None:
        """Something has changed, or a new scope begins."""
        self.count = next(self._numbers)


changes = Changes()

#: A function to replace while scopes are open: where it is, its name, and what stands in for it.
Replacement = tuple[Any, str, Callable[..., Any]]

_WRITERS: list[tuple[type, tuple[str, ...]]] = [
    (
        nn.Module,
        (
            "__delattr__",
            "register_parameter",
            "register_buffer",
            "add_module",
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_backward_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
            "_apply",
        ),
    ),
    (nn.ModuleList, ("insert", "__delitem__")),
    (nn.Sequential, ("insert", "__delitem__")),
    (nn.ModuleDict, ("clear", "__delitem__")),
    (RemovableHandle, ("remove",)),
]


def replacements() -> Iterator[Replacement]:
    """The writers of modules, each with one that counts."""
    yield nn.Module, "__setattr__", _counting_setattr(nn.Module.__setattr__)
    yield torch, "set_default_dtype", _counting(torch.set_default_dtype)
    for owner, names in _WRITERS:
        for name in names:
            if name in vars(owner):
                yield owner, name, _counting(vars(owner)[name])


def _counting_setattr(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        original(self, name, value)
        if name in changes.names or isinstance(value, nn.Parameter | nn.Module):
            changes.add()

    return set_attribute


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            changes.add()

    return write
