"""Calls that read contents: the instance waits until they are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from penstock.calls.structure import flatten, unflatten
from penstock.capture.lazy.tensor import LazyTensor

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


def read(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call on the contents, which waits for them."""
    leaves, structure = flatten((args, kwargs))
    lazies = [leaf for leaf in leaves if isinstance(leaf, LazyTensor)]
    contents = iter(scope.contents([_here(scope, lazy) for lazy in lazies]) if lazies else ())
    filled = [
        next(contents).to(leaf.device) if isinstance(leaf, LazyTensor) else leaf for leaf in leaves
    ]
    real_args, real_kwargs = unflatten(structure, filled)
    return function(*real_args, **real_kwargs)


def _here(scope: Scope, lazy: LazyTensor) -> LazyTensor:
    operand = scope.own(lazy)
    return operand if isinstance(operand, LazyTensor) else scope.lazy(operand._kind, operand._value)


def show(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """What `print` shows: the contents, and whether gradients flow."""
    (contents,) = scope.contents([_here(scope, args[0])])
    contents = contents.to(args[0].device)
    if args[0]._kind.requires_grad:
        contents = contents.requires_grad_()
    return str(function(contents, **kwargs))


def index(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x[i]`; slices need whole numbers, masks make shapes that depend on contents."""
    tensor, items = args
    if type(tensor) is LazyTensor and type(items) is int:
        return scope.record(function, args, kwargs)
    listed = items if isinstance(items, tuple) else (items,)
    is_real = type(tensor) is not LazyTensor and type(tensor) is not nn.Parameter
    if is_real and not any(isinstance(item, LazyTensor) for item in flatten(listed)[0]):
        return function(tensor, items)  # a view of a real tensor is real too
    if not any(_needs_contents(item) for item in listed):
        return scope.record(function, args, kwargs)
    known = tuple(known_index(scope, item) for item in listed)
    return scope.record(function, (tensor, known if isinstance(items, tuple) else known[0]), {})


def _needs_contents(item: Any) -> bool:
    if isinstance(item, slice):
        return any(isinstance(part, torch.Tensor) for part in (item.start, item.stop, item.step))
    return isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def known_index(scope: Scope, item: Any) -> Any:
    """The index with contents where the shape of the result depends on them."""
    if not _needs_contents(item):
        return item
    if isinstance(item, slice):
        parts = (item.start, item.stop, item.step)
        return slice(*(int(p) if isinstance(p, torch.Tensor) else p for p in parts))
    (mask,) = read(scope, lambda tensor: [tensor], (item,), {})
    return mask if mask.dim() == 0 else mask.nonzero(as_tuple=True)


_READING = [
    "torch.Tensor.item",
    "torch.Tensor.tolist",
    "torch.Tensor.numpy",
    "torch.Tensor.__array__",
    "torch.Tensor.__bool__",
    "torch.Tensor.__float__",
    "torch.Tensor.__int__",
    "torch.Tensor.__index__",
    "torch.Tensor.__complex__",
    "torch.Tensor.__contains__",
    "torch.Tensor.__format__",
    "torch.Tensor.is_nonzero",
    "torch.Tensor.equal",
    "torch.Tensor.allclose",
    "torch.Tensor.nonzero",
    "torch.Tensor.unique",
    "torch.Tensor.bincount",
    "torch.is_nonzero",
    "torch.equal",
    "torch.allclose",
    "torch.nonzero",
    "torch.argwhere",
    "torch.unique",
    "torch.functional.unique",
    "torch.unique_consecutive",
    "torch.bincount",
    "torch.testing.assert_close",
    "torch._assert",
]

READS: dict[str, Any] = {
    **dict.fromkeys(_READING, read),
    "torch.Tensor.__repr__": show,
    "torch.Tensor.__getitem__": index,
}
