"""What is known of a recorded tensor before it is computed.

Kinds are interned: two tensors have the same kind if and only if they have the same object here, so
a kind is compared and hashed by identity. A kind also says how its values are stored.
"""

from __future__ import annotations

from typing import Any

import torch

from penstock.capture.worlds import dtype_name
from penstock.ir.types import TensorType
from penstock.plan.recorded import Stored
from penstock.plan.schedule import Kind

#: A value with at most so many elements along its leading dimension is stored element by element.
MOST_ELEMENTS = 256


class LazyKind:
    """The type of a recorded tensor, with its strides and whether gradients flow through it."""

    __slots__ = (
        "device",
        "dtype",
        "is_contiguous",
        "prototype",
        "requires_grad",
        "shape",
        "stored",
        "stride",
        "type",
    )

    def __init__(
        self,
        dtype: torch.dtype,
        shape: torch.Size,
        stride: tuple[int, ...],
        device: torch.device,
        requires_grad: bool,
    ) -> None:
        self.dtype, self.shape, self.stride = dtype, shape, stride
        self.device, self.requires_grad = device, requires_grad
        #: A tensor without contents that shows torch the shape and the dtype.
        self.prototype = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        self.is_contiguous: bool = self.prototype.is_contiguous()
        self.type = TensorType(dtype_name(dtype), tuple(shape), str(device))
        self.stored = _stored(self.type)

    def with_grad(self, requires_grad: bool) -> LazyKind:
        """The same kind, with or without gradients."""
        if requires_grad == self.requires_grad:
            return self
        return intern(self.dtype, self.shape, self.stride, self.device, requires_grad)

    def __str__(self) -> str:
        return str(self.type)


#: Every kind there is; emptied with the library, whose keys hold kinds.
known_kinds: dict[Any, LazyKind] = {}


def intern(
    dtype: torch.dtype,
    shape: torch.Size,
    stride: tuple[int, ...],
    device: torch.device,
    requires_grad: bool,
) -> LazyKind:
    """The one kind with these facts."""
    key = (dtype, shape, stride, device, requires_grad)
    kind = known_kinds.get(key)
    if kind is None:
        kind = known_kinds.setdefault(key, LazyKind(dtype, shape, stride, device, requires_grad))
    return kind


def kind_of(tensor: torch.Tensor) -> LazyKind:
    """The kind of a real or fake tensor."""
    stride = tuple(tensor.stride())
    return intern(tensor.dtype, tensor.shape, stride, tensor.device, tensor.requires_grad)


def _stored(type_: TensorType) -> Stored:
    shape: tuple[int, ...] = type_.shape  # type: ignore[assignment]
    if len(shape) >= 2 and 1 <= shape[0] <= MOST_ELEMENTS:
        return Stored(Kind(type_.dtype, shape[1:], type_.device), shape[0])
    return Stored(Kind(type_.dtype, shape, type_.device), None)
