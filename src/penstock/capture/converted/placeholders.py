"""Values that nobody looks at: they keep the place of a value that is not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.constants import constant_tensor
from penstock.capture.leaf_types import LeafType, StaticLeaf
from penstock.capture.recording import record
from penstock.capture.tensor_rules import size_of
from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.worlds import dtype_called
from penstock.ir.program import ArrayNew
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def placeholder(tracer: Tracer, leaf: LeafType | StaticLeaf) -> Any:
    """A value of that type: zeros, or an empty array."""
    if isinstance(leaf, StaticLeaf):
        return leaf.value
    if isinstance(leaf.type, ArrayType):
        output = tracer.emit(ArrayNew(True), (tracer.tensor(0),), (leaf.type,))[0]
        return TracedTensorArray(tracer, output, tracer.scope, None, True)
    return _zeros(tracer, leaf.type)


def _zeros(tracer: Tracer, type_: TensorType) -> Any:
    dtype = dtype_called(type_.dtype)
    static = tuple(1 if isinstance(size, str) else size for size in type_.shape)
    with torch._C.DisableTorchFunction():
        made = torch.zeros(static, dtype=dtype, device=type_.device)
    zeros = constant_tensor(tracer, made)
    if not type_.is_dynamic:
        return zeros
    sizes = tuple(_size(tracer, size) if isinstance(size, str) else size for size in type_.shape)
    return record(tracer, torch.Tensor.expand, (zeros, sizes), {})


def _size(tracer: Tracer, symbol: str) -> Any:
    """The size that a symbol stands for, taken from a value that has it; else 1."""
    for _, tensor in tracer.alive():
        type_ = tensor.traced.value.type
        if not isinstance(type_, TensorType) or not tracer.scope.sees(tensor.traced.scope):
            continue
        if symbol in type_.shape:
            return size_of(tracer, tensor, type_.shape.index(symbol))
    return 1
