"""Indexing with 0-d integer tensors, without reading them.

Torch turns `x[i]` with a 0-d integer tensor into a selection by a Python number, which neither fake
nor batched tensors can give. Inside this mode such an index stays a tensor: `x[i]` gathers, `x[i] =
v` scatters, negative indices included. Slices whose bounds are tensors are left to torch, which
refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


class TensorIndexing(TorchFunctionMode):
    """Make `x[i]` and `x[i] = v` data operations where `i` is a 0-d integer tensor."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__getitem__ and _has_tensor_position(args[1]):
            return read_at(args[0], args[1])
        if func is torch.Tensor.__setitem__ and _has_tensor_position(args[1]):
            return write_at(args[0], args[1], args[2])
        return func(*args, **(kwargs or {}))


def read_at(source: torch.Tensor, index: Any) -> torch.Tensor:
    """`source[index]`."""
    positions = _tensor_positions(source, index)
    picks = [positions.get(dimension) for dimension in range(max(positions) + 1)]
    picked = torch.ops.aten.index.Tensor(source, picks)
    rest = tuple(item for item in _as_tuple(index) if not _is_position(item))
    result: torch.Tensor = picked[rest] if any(item is not Ellipsis for item in rest) else picked
    return result


def write_at(target: torch.Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`: write through the table of element numbers that the index picks."""
    numbers = torch.arange(target.numel(), device=target.device).reshape(target.shape)
    picked = read_at(numbers, index)
    values = torch.as_tensor(value, dtype=target.dtype, device=target.device)
    written = target.flatten().index_put((picked,), values.expand(picked.shape))
    target.copy_(written.reshape(target.shape))


def _tensor_positions(source: torch.Tensor, index: Any) -> dict[int, torch.Tensor]:
    """The 0-d tensors of an index, by the dimension of the source each selects from."""
    items = _as_tuple(index)
    consumed = sum(_dimensions(item) for item in items)
    positions = {}
    dimension = 0
    for item in items:
        if item is Ellipsis:
            dimension += source.dim() - consumed
        if _is_position(item):
            positions[dimension] = item
        dimension += _dimensions(item)
    return positions


def _dimensions(item: Any) -> int:
    """How many dimensions of the source one item of an index takes up."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return 1


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_position(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in _INTEGERS


def _has_tensor_position(index: Any) -> bool:
    return any(_is_position(item) for item in _as_tuple(index))
