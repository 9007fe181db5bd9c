"""The key of a torch call: all that decides what is computed.

That is the function, the kinds of its tensors, and every other argument by value. Calls with the
same key are the same step; their operands come in the order of the arguments, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.autocast import current_autocast
from penstock.capture.lazy.library import Key, Uniform
from penstock.capture.lazy.tensor import LazyTensor
from penstock.ir.program import Operand

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope

PLAIN = frozenset([int, bool, str, type(None), torch.dtype, torch.device, type(Ellipsis)])
_CONTAINERS = (tuple, list)


class Unhashable(Exception):
    """An argument that cannot be part of a key."""


class CallKey:
    """The key of a call and its operands, in the order in which they come."""

    __slots__ = ("_scope", "operands", "parts", "values")

    def __init__(self, scope: Scope, function: Callable[..., Any] | None) -> None:
        self._scope = scope
        self.parts: list[Any] = [function]
        self.operands: list[Any] = []
        #: The values among the operands: all but shared tensors and keys.
        self.values: list[int] = []

    def full_key(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Hashable:
        """The key of a call."""
        self.add_all(args)
        if kwargs:
            self.add_named(kwargs)
        return self.finished()

    def add_all(self, args: Sequence[Any]) -> None:
        """Take in arguments."""
        for item in args:
            self.add(item)

    def add(self, item: Any) -> None:
        """Take in one argument."""
        kind = type(item)
        if kind in _CONTAINERS:
            self.parts += (kind, len(item))
            self.add_all(item)
        elif kind is LazyTensor:
            self._add_tensor(self._scope.own(item))
        elif isinstance(item, torch.Tensor):
            self._add_tensor(self._scope.enter(item))
        elif kind in PLAIN:
            self.parts += (kind, item)
        elif kind is float:
            self.parts += (kind, item if item else str(item))
        else:
            self._add_other(kind, item)

    def _add_tensor(self, operand: Any) -> None:
        if type(operand) is Uniform:
            self.parts.append(operand)
            self.operands.append(operand)
            return
        for number, known in enumerate(self.operands):
            if known is operand:
                self.parts.append(number)
                return
        self.parts.append(operand._kind)
        self.operands.append(operand)
        self.values.append(operand._value)

    def _add_other(self, kind: type, item: Any) -> None:
        if kind is slice:
            self.parts.append(kind)
            self.add_all((item.start, item.stop, item.step))
        elif kind is Key:
            self.parts.append(kind)
            self.operands.append(item)
        elif isinstance(item, tuple | list):  # torch.Size and named tuples
            self.parts += (kind, len(item))
            self.add_all(item)
        elif isinstance(item, dict):
            self.add_named(item)
        else:
            try:
                hash(item)
            except TypeError:
                raise Unhashable from None
            self.parts += (kind, item)

    def add_named(self, items: dict[Any, Any]) -> None:
        """Take in arguments by name."""
        for name, item in items.items():
            self.parts.append(name)
            self.add(item)

    def finished(self) -> Hashable:
        """The key."""
        self.parts.append(_is_grad_enabled())
        if _is_any_autocast_enabled():
            self.parts.append(current_autocast())
        return tuple(self.parts)


_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled


class Templates:
    """The arguments of a call again, with operands replaced."""

    def __init__(self, scope: Scope, operands: list[Any]) -> None:
        self._scope = scope
        self._operands = operands
        self._next = 0

    def frozen(self, item: Any) -> Any:
        """With `Operand`s in the place of tensors; containers become tuples."""
        if isinstance(item, torch.Tensor | Key):
            return Operand(self._number(item))
        if isinstance(item, tuple | list):
            return tuple(self.frozen(part) for part in item)
        if isinstance(item, slice):
            return slice(*(self.frozen(part) for part in (item.start, item.stop, item.step)))
        return item

    def _number(self, item: Any) -> int:
        if isinstance(item, Key):
            operand: Any = item
        elif type(item) is LazyTensor:
            operand = self._scope.own(item)
        else:
            operand = self._scope.enter(item)
        if not isinstance(operand, Uniform):
            for number, known in enumerate(self._operands):
                if known is operand and number < self._next:
                    return number
        self._next += 1
        return self._next - 1
