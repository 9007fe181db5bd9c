"""Calls that make tensors from numbers: constants, the same for every instance.

A constant is made once per flush and shared by all that ask for it; each asking gets a recorded
tensor of its own, so a change in place stays with who made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of
from penstock.capture.lazy.kinds import LazyKind, kind_of
from penstock.capture.lazy.tensor import LazyTensor

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


def make_constant(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.zeros(3)` and the like."""
    is_plain = all(type(item) is int for item in args)
    if is_plain and all(type(item) in _OPTIONS for item in kwargs.values()):
        key: Any = (function, args, tuple(kwargs.items()), torch.get_default_dtype())
        return scope.constant(key, lambda: function(*args, **kwargs))
    leaves, structure = flatten((args, kwargs))
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return function(*args, **kwargs)
    options = dict(kwargs)
    asks = bool(options.pop("requires_grad", False))
    key = (function, str(structure), str(leaves), torch.get_default_dtype())
    return _asking(scope.constant(key, lambda: function(*args, **options)), asks)


def make_alike(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.new_zeros(3)`, `torch.zeros_like(x)` and the like: only the kind of x matters."""
    tensor, *rest = args if args else (kwargs["input"],)
    if not kwargs and type(tensor) is LazyTensor and all(type(item) is int for item in rest):
        known = scope.known_constant((function, tensor._kind, *rest))
        if known is not None:
            return known
    leaves, _ = flatten((rest, [item for name, item in kwargs.items() if name != "input"]))
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return scope.record(function, args, kwargs)
    kind = tensor._kind if isinstance(tensor, LazyTensor) else kind_of(tensor)
    options = {name: item for name, item in kwargs.items() if name != "input"}
    asks = bool(options.pop("requires_grad", False))

    def make() -> torch.Tensor:
        like = torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=kind.device)
        made: torch.Tensor = function(like, *rest, **options)
        return made

    key: Any = (function, kind, str(leaves), str(options))
    if not options and all(type(item) is int for item in rest):
        key = (function, kind, *rest)
    return _asking(scope.constant(key, make), asks)


def make_new(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.new(2, 3)`: a tensor with any contents, or with those given."""
    tensor, *rest = args
    if len(rest) == 1 and isinstance(rest[0], list | tuple) and not isinstance(rest[0], torch.Size):
        return torch.tensor(rest[0], dtype=tensor.dtype, device=tensor.device)
    sizes = rest[0] if len(rest) == 1 and isinstance(rest[0], torch.Size) else rest
    return make_alike(scope, torch.Tensor.new_zeros, (tensor, *sizes), {})


def fill(scope: Scope, target: LazyTensor, number: float) -> LazyTensor | None:
    """`x.fill_(0.0)` where nobody shares the memory of x: a constant; None where somebody does."""
    if target._root is not None or target._shares is not None or target._is_own_leaf:
        return None
    kind = target._kind.with_grad(False)
    made = scope.constant(("fill", kind, str(number)), lambda: _filled(kind, number))
    target._kind, target._value = kind, made._value
    return target


def _filled(kind: LazyKind, number: float) -> torch.Tensor:
    made = torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=kind.device)
    return made.fill_(number)


def as_tensor(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.tensor(data)`; recorded numbers among the data are stacked, not read."""
    data = args[0] if args else kwargs["data"]
    if isinstance(data, LazyTensor):
        made = data if name_of(function) == "torch.as_tensor" else data.detach().clone()
        return _converted(made, kwargs)
    leaves, _ = flatten(data)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return make_constant(scope, function, args, kwargs)
    return _converted(_stacked(data).detach(), kwargs)


def _stacked(data: Any) -> torch.Tensor:
    """Nested lists of numbers and recorded numbers as one recorded tensor."""
    if isinstance(data, list | tuple):
        parts = [_stacked(item) for item in data]
        dtype = parts[0].dtype
        for part in parts[1:]:
            dtype = torch.promote_types(dtype, part.dtype)
        return torch.stack([part.to(dtype) for part in parts])
    if isinstance(data, torch.Tensor):
        return data.reshape(()) if data.numel() == 1 else data
    return torch.tensor(data)


def _converted(tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    chosen = {k: options[k] for k in ("dtype", "device") if options.get(k) is not None}
    made = tensor.to(**chosen) if chosen else tensor
    return made.requires_grad_() if options.get("requires_grad") else made


def _asking(lazy: LazyTensor, asks: bool) -> LazyTensor:
    if asks:
        lazy.requires_grad_()
    return lazy


_OPTIONS = frozenset([torch.dtype, torch.device])
_MAKING = ["zeros", "ones", "full", "arange", "eye", "linspace", "empty", "scalar_tensor", "range"]
_LIKE = ["zeros_like", "ones_like", "empty_like", "full_like"]
_NEW = ["new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"]

FACTORIES: dict[str, Any] = {
    **{f"torch.{name}": make_constant for name in _MAKING},
    **{f"torch.{name}": make_alike for name in _LIKE},
    **{f"torch.Tensor.{name}": make_alike for name in _NEW},
    "torch.Tensor.new": make_new,
    "torch.tensor": as_tensor,
    "torch.as_tensor": as_tensor,
}
