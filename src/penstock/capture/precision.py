"""Under autocast, weights are cast in the program itself: once per call, not at every launch.

Only products have their operands cast here, and only those that are the same for all instances;
autocast does the rest when the program runs, and finds these in its dtype already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.recording import record

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

#: Calls that autocast runs in its dtype on every kind of device, by the last part of their name.
_PRODUCTS = frozenset(
    [
        "linear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "addbmm",
        "conv1d",
        "conv2d",
        "conv3d",
    ]
)


def with_cast_weights(tracer: Tracer, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call, with weights as autocast would cast them."""
    is_on = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if not is_on or name.rsplit(".", 1)[-1] not in _PRODUCTS:
        return args
    return tuple(_cast(tracer, item) for item in args)


def _cast(tracer: Tracer, item: Any) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    tensor = tracer.tensor(item)
    fake = tensor.traced.fakes[0]
    device = fake.device.type
    if not tensor.traced.is_uniform or fake.dtype is not torch.float32:
        return item
    if not torch.is_autocast_enabled(device):
        return item
    return record(tracer, torch.Tensor.to, (tensor, torch.get_autocast_dtype(device)), {})
