"""Tensors that are recorded and not yet computed.

A `LazyTensor` is a real `torch.Tensor` over contents that do not exist: its memory is a meta tensor
which all tensors of its kind share, so torch sees the right shape, and any way to the contents that
is not covered here ends in an error and never in a wrong number. Operators are Python methods
because the way through torch's own takes three times as long.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.lazy.active import state
from penstock.capture.lazy.kinds import LazyKind
from penstock.capture.lazy.library import library

if TYPE_CHECKING:
    from penstock.capture.lazy.library import Step
    from penstock.capture.lazy.scope import Scope


class LazyTensor(torch.Tensor):
    """A tensor of a recording scope."""

    __slots__ = ("_kind", "_scope", "_value")

    _kind: LazyKind
    _value: int
    _scope: Scope
    #: Set once the contents are there and the scope is over.
    _real: torch.Tensor | None = None
    #: Of a view: the tensor that it was made from, the step, and which of its tensors it is.
    _view: tuple[LazyTensor, Step, int] | None = None
    #: The tensor whose memory this one shares, if it is a view.
    _root: LazyTensor | None = None
    #: Of a root: the views of its memory, oldest first.
    _shares: list[weakref.ref[LazyTensor]] | None = None
    #: Whether user code made it a leaf that asks for gradients.
    _is_own_leaf: bool = False

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        scope = state.scope
        if scope is not None:
            return scope.call(func, args, kwargs or {})
        return call_outside(func, args, kwargs or {})

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self._kind.shape

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._kind.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._kind.device

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self._kind.shape)

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self._is_own_leaf or not self._kind.requires_grad

    @property
    def requires_grad(self) -> bool:
        return self._kind.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def dim(self) -> int:
        return len(self._kind.shape)

    def size(self, dim: int | None = None) -> Any:
        return self._kind.shape if dim is None else self._kind.shape[dim]

    def numel(self) -> int:
        return self._kind.shape.numel()

    def __len__(self) -> int:
        if not self._kind.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._kind.shape[0]

    def __copy__(self) -> torch.Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __hash__(self) -> int:
        return id(self)


make_tensor = torch.Tensor._make_subclass
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_function_modes = torch._C._len_torch_function_stack


def call_outside(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch call where no scope is open: recorded tensors have contents by now."""
    from penstock.capture.lazy.escaped import real_arguments

    real_args, real_kwargs = real_arguments(args, kwargs)
    return function(*real_args, **real_kwargs)


_operators = library.operators


def _binary(name: str) -> Callable[[LazyTensor, Any], Any]:
    function = getattr(torch.Tensor, name)

    def method(self: LazyTensor, other: Any) -> Any:
        scope = self._scope
        if (
            not scope.is_recording
            or _function_modes() != scope.function_modes
            or _is_any_autocast_enabled()
        ):
            return function(self, other)
        kind = type(other)
        if kind is LazyTensor:
            if other._scope is not scope or other is self:
                return function(self, other)
            key: Any = (function, self._kind, other._kind, _is_grad_enabled())
            values: tuple[int, ...] = (self._value, other._value)
        elif (kind is float or kind is int) and other:
            key = (function, self._kind, kind, other, _is_grad_enabled())
            values = (self._value,)
        else:
            return function(self, other)
        step = _operators.get(key)
        if step is None:
            return scope.learn_operator(key, function, self, other)
        return scope.add_single(step, values)

    method.__name__ = name
    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod")
_LOGIC = ("and", "or", "xor", "lshift", "rshift")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

for _name in (*_ARITHMETIC, *_LOGIC, *_COMPARISONS):
    setattr(LazyTensor, f"__{_name}__", _binary(f"__{_name}__"))
for _name in (*_ARITHMETIC, "and", "or", "xor"):
    setattr(LazyTensor, f"__r{_name}__", _binary(f"__r{_name}__"))
