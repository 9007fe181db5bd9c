"""The type of a tensor as programs compare it: dtype, shape and device, never the contents."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TensorType:
    """Prints as `float32[8, 64] on cuda:0`; the device is left out where it is the CPU."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device

    def __str__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        return text if self.device.type == "cpu" else f"{text} on {self.device}"

    def empty(self, *leading: int) -> torch.Tensor:
        """An uninitialised tensor of this type with `leading` dimensions in front."""
        return torch.empty((*leading, *self.shape), dtype=self.dtype, device=self.device)


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of `tensor`."""
    return TensorType(tensor.dtype, tuple(tensor.shape), tensor.device)
