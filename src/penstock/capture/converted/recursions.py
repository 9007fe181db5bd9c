"""Recursion through plain functions: one that calls itself under a traced condition becomes a
function of the program.

The function of a `ps.function` is known from the start. Any other is written out where it is called
first, and called from there on; as long as what it is given tells its calls apart while tracing (a
Python number that counts down), it is written out again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten
from penstock.capture.reach import global_names
from penstock.capture.signatures import Callee
from penstock.capture.tensor_array import TensorArray
from penstock.conversion.compile import is_generated

if TYPE_CHECKING:
    from penstock.capture.scopes import Scope
    from penstock.capture.tracer import Tracer


@dataclass(slots=True)
class _Active:
    """A function that is being written out."""

    key: Hashable
    scope: Scope
    static: list[Hashable]


class Recursions:
    """The functions at work in one trace."""

    def __init__(self) -> None:
        self._entries: list[tuple[Hashable, Callee]] = []
        self._active: list[_Active] = []

    @contextmanager
    def entry(self, callee: Callee) -> Iterator[None]:
        """Trace the function of a program."""
        self._entries.append((_key(callee.function), callee))
        try:
            yield
        finally:
            self._entries.pop()

    def call(self, tracer: Tracer, function: Any, converted: Any) -> Any:
        """What to call for a function of user code."""
        key = _key(function)
        for known, callee in self._entries:
            if known == key:
                return functools.partial(_call_traced, tracer, callee)
        plain = getattr(function, "__func__", function)
        if converted is function and not is_generated(plain.__code__):
            return converted
        if tracer.scope.parent is None and not _names_itself(plain):
            return converted
        return functools.partial(self._call, tracer, function, converted, key)

    def _call(
        self,
        tracer: Tracer,
        function: Any,
        converted: Callable[..., Any],
        key: Hashable,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        static = [_static(leaf) for leaf in flatten((args, kwargs))[0]]
        outer = [active for active in self._active if active.key == key]
        if outer and tracer.scope is not outer[-1].scope and static == outer[-1].static:
            name = getattr(function, "__name__", "function")
            callee = Callee(converted, name, key, inspect.signature(function))
            with _Again(self, key, callee):
                return tracer.call(callee, args, kwargs)
        self._active.append(_Active(key, tracer.scope, static))
        try:
            return converted(*args, **kwargs)
        finally:
            self._active.pop()


class _Again:
    """While a recursive function is traced as one of the program, calls of it are calls."""

    def __init__(self, recursions: Recursions, key: Hashable, callee: Callee) -> None:
        self._recursions, self._item = recursions, (key, callee)

    def __enter__(self) -> None:
        self._recursions._entries.append(self._item)

    def __exit__(self, *_: object) -> None:
        self._recursions._entries.remove(self._item)


def _call_traced(tracer: Tracer, callee: Callee, /, *args: Any, **kwargs: Any) -> Any:
    return tracer.call(callee, args, kwargs)


def _key(function: Any) -> Hashable:
    """Equal for the same function on the same object, in whichever wrapper."""
    if isinstance(function, MethodType):
        return id(function.__func__), id(function.__self__)
    return id(function), None


def _names_itself(function: FunctionType) -> bool:
    code = function.__code__
    return function.__name__ in {*code.co_freevars, *global_names(code)}


def _static(leaf: Any) -> Hashable:
    """What a call is told apart by while tracing."""
    if isinstance(leaf, torch.Tensor | TensorArray):
        return "traced"
    return type(leaf).__name__, leaf if isinstance(leaf, int | float | str) else id(leaf)
