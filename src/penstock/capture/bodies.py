"""The bodies of a program under way: which one is filled, and the values in them.

Values are numbered in the order in which they are made. Bodies are inside each other; a body that
was left can be filled further.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.capture.scopes import FunctionTrace, Scope
from penstock.capture.traced_tensor import Facts, TracedTensor
from penstock.capture.worlds import Fakes, Worlds
from penstock.ir.program import Value
from penstock.ir.types import TensorType, Type


class Bodies:
    """The bodies of one program."""

    def __init__(self) -> None:
        self.worlds = Worlds()
        self._next_value = 0
        self._scopes: list[Scope] = []
        #: Every traced tensor that may still be in use, to find views.
        self._alive: list[weakref.ref[TracedTensor]] = []

    @property
    def scope(self) -> Scope:
        """The body being filled."""
        return self._scopes[-1]

    @contextmanager
    def function_scope(self, name: str) -> Iterator[Scope]:
        """Fill the body of a new function."""
        self._scopes.append(Scope(FunctionTrace(name)))
        try:
            yield self.scope
        finally:
            self._scopes.pop()

    @contextmanager
    def nested_scope(self) -> Iterator[Scope]:
        """Fill a body inside the current one."""
        self._scopes.append(Scope(self.scope.function, self.scope))
        try:
            yield self.scope
        finally:
            self._scopes.pop()

    @contextmanager
    def reopened(self, scope: Scope) -> Iterator[None]:
        """Fill a body inside the current one further."""
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()

    def new_value(self, type_: Type) -> Value:
        """A value with the next number."""
        self._next_value += 1
        return Value(self._next_value - 1, type_)

    def wrap(self, value: Value, fakes: Fakes | None = None, **facts: Any) -> TracedTensor:
        """The traced tensor of a value of the current body."""
        assert isinstance(value.type, TensorType)
        fakes = self.worlds.fakes(value.type) if fakes is None else fakes
        facts.setdefault("origins", (frozenset(),) * len(value.type.shape))
        tensor = TracedTensor(Facts(value, fakes, self.scope, **facts))
        self._alive.append(weakref.ref(tensor))
        return tensor

    def alive(self) -> list[tuple[weakref.ref[TracedTensor], TracedTensor]]:
        """Every traced tensor that may still be in use."""
        found = [(alive, alive()) for alive in self._alive]
        return [(alive, tensor) for alive, tensor in found if tensor is not None]

    def is_aliased(self, tensor: TracedTensor) -> bool:
        """Whether another live tensor shares the memory of `tensor`."""
        storage = tensor.traced.fakes[0].untyped_storage()._cdata
        self._alive = [alive for alive in self._alive if alive() is not None]
        others = (alive() for alive in self._alive)
        return any(
            other is not None
            and other is not tensor
            and other.traced.fakes[0].untyped_storage()._cdata == storage
            for other in others
        )
