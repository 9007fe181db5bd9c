"""Questions about a tensor that user code asks while it is traced: shapes, sizes, and contents.

Shapes are answered with `TracedDimension`s and traced integers. Contents are known only of tensors
made from constants; for all others the question is refused, with the way out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten
from penstock.capture.constants import constant_tensor
from penstock.capture.recording import record
from penstock.capture.refusals import CONVERSIONS, value_needed
from penstock.capture.traced_tensor import TracedDimension, TracedShape, TracedTensor
from penstock.ir.program import Size
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def shape_of(tracer: Tracer, tensor: TracedTensor) -> TracedShape:
    """The shape as user code sees it."""
    return TracedShape(size_of(tracer, tensor, d) for d in range(tensor.traced.fakes[0].dim()))


def size_of(tracer: Tracer, tensor: TracedTensor, dimension: int) -> Any:
    """One entry of the shape."""
    facts = tensor.traced
    type_ = facts.value.type
    assert isinstance(type_, TensorType)
    size = type_.shape[dimension]
    if isinstance(size, int):
        return TracedDimension(size, facts.origins[dimension])
    value = tracer.emit(Size(dimension), (tensor,), (TensorType("int64"),))[0]
    return tracer.wrap(value, is_control=True, hint=tracer.worlds.pair(size))


def _shape(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not isinstance(tensor, TracedTensor):
        return function(*args, **kwargs)
    return shape_of(tracer, tensor)


def _size(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not isinstance(tensor, TracedTensor):
        return function(*args, **kwargs)
    dimension = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dimension is None:
        return shape_of(tracer, tensor)
    count = tensor.traced.fakes[0].dim()
    if not -count <= dimension < count:
        return function(tensor.traced.fakes[0], dimension)
    return size_of(tracer, tensor, dimension % count)


def _numel(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[0], TracedTensor):
        return function(*args)
    sizes = shape_of(tracer, args[0])
    total = math.prod(size for size in sizes if isinstance(size, int))
    for size in sizes:
        if isinstance(size, TracedTensor):
            total = record(tracer, torch.Tensor.mul, (size, total), {})
    return total


def _length(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not isinstance(tensor, TracedTensor):
        return function(tensor)
    type_ = tensor.traced.value.type
    assert isinstance(type_, TensorType)
    if type_.shape and isinstance(type_.shape[0], str):
        raise value_needed("__len__", tensor)
    return function(tensor.traced.fakes[0])


def _iterate(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = tracer.tensor(args[0])
    first, second = tensor.traced.fakes
    if first.dim() and first.shape[0] != second.shape[0]:
        raise value_needed("__iter__", tensor)
    return record(tracer, torch.Tensor.unbind, (tensor, 0), {})


def _contents(
    name: str, tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Conversions to Python: possible for constants only."""
    tensor = args[0]
    if isinstance(tensor, TracedTensor) and tensor.traced.contents is not None:
        return function(tensor.traced.contents, *args[1:], **kwargs)
    raise value_needed(name, tensor)


def _text(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return TracedTensor.__repr__(tracer.tensor(args[0]))


def _detached(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return record(tracer, torch.Tensor.detach, args, {})


def make_tensor(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`torch.tensor` and `torch.as_tensor`."""
    data = args[0] if args else kwargs.get("data")
    leaves, _ = flatten(data)
    if not any(isinstance(leaf, torch.Tensor | TracedDimension) for leaf in leaves):
        return constant_tensor(tracer, function(*args, **kwargs))
    options = {key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None}
    made = _stacked(tracer, data)
    return record(tracer, torch.Tensor.to, (made,), options) if options else made


def _stacked(tracer: Tracer, data: Any) -> Any:
    if isinstance(data, list | tuple):
        return record(tracer, torch.stack, ([_stacked(tracer, item) for item in data],), {})
    return tracer.tensor(data)


def _full(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A filled tensor; a traced number in the place of the fill value is expanded."""
    fill_value = kwargs.get("fill_value", args[1] if len(args) > 1 else None)
    if not isinstance(fill_value, torch.Tensor):
        leaves, _ = flatten((args, kwargs))
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return record(tracer, function, args, kwargs)
        return constant_tensor(tracer, function(*args, **kwargs))
    size = args[0] if args else kwargs["size"]
    filled = record(tracer, torch.Tensor.expand, (fill_value, size), {})
    dtype = kwargs.get("dtype")
    return filled if dtype is None else record(tracer, torch.Tensor.to, (filled, dtype), {})


def _new(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.new(size)`: torch tells a size from contents by its type, and a program has no such."""
    if len(args) == 2 and isinstance(args[1], torch.Size | TracedShape):
        return record(tracer, torch.Tensor.new_empty, args, kwargs)
    return record(tracer, function, args, kwargs)


TENSOR_RULES: dict[str, Callable[..., Any]] = {
    **{f"torch.Tensor.{name}": partial(_contents, name) for name in CONVERSIONS},
    "torch.Tensor.shape.__get__": _shape,
    "torch.Tensor.size": _size,
    "torch.Tensor.numel": _numel,
    "torch.Tensor.nelement": _numel,
    "torch.numel": _numel,
    "torch.Tensor.__len__": _length,
    "torch.Tensor.__iter__": _iterate,
    "torch.Tensor.__format__": _text,
    "torch.Tensor.__repr__": _text,
    "torch.Tensor.data.__get__": _detached,
    "torch.tensor": make_tensor,
    "torch.as_tensor": make_tensor,
    "torch.full": _full,
    "torch.Tensor.new": _new,
}
