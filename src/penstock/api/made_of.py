"""What a Python function is made of: its code and defaults, which may be replaced in place, as
live reloading does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from operator import is_
from types import FunctionType, MethodType
from typing import Any

import torch

from penstock.calls.structure import flatten


class MadeOf:
    """The code and defaults of a function, and of those that it wraps, as they were."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._functions = _chain(function)
        #: Held, so that no other object is taken for one of them.
        self._parts = self._now()

    def is_current(self) -> bool:
        """Whether the same objects are there still."""
        now = self._now()
        return len(now) == len(self._parts) and all(map(is_, now, self._parts))

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The parameters."""
        return inspect.signature(self._function)

    @functools.cached_property
    def bound_signature(self) -> inspect.Signature:
        """Those of a method: the same for all objects."""
        return inspect.signature(MethodType(self._function, object()))

    def _now(self) -> list[object]:
        found: list[object] = []
        for function in self._functions:
            named = function.__kwdefaults__
            found += (function.__code__, function.__defaults__, named)
            if named:
                found += named.values()
        return found


def _chain(function: Any) -> list[FunctionType]:
    """The functions that say which parameters there are."""
    found: list[FunctionType] = []
    while function is not None and function not in found:
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType):
            found.append(function)
        function = getattr(function, "__wrapped__", None)
    return found


def has_method(value: Any, method: object) -> bool:
    """Whether a value is an object with this method, and no argument that can be traced."""
    if isinstance(value, torch.Tensor):
        return False
    kinds = type(value).__mro__
    if not any(found is method for kind in kinds for found in vars(kind).values()):
        return False
    leaves, _ = flatten(value)
    return len(leaves) == 1 and leaves[0] is value
