"""Uploads that do not wait for a device, of host values that are the caller's.

A call may be over before the device has read its inputs. Of pageable memory torch takes a copy
first; pinned memory is read in place, and its owner may fill it anew as soon as the call is over.
"""

from __future__ import annotations

import torch


def unchanging(values: torch.Tensor) -> torch.Tensor:
    """The values, in memory that nobody writes to while a copy to a device is on its way: torch
    does not give pinned memory of its own to others before.
    """
    if values.device.type != "cpu" or not values.is_pinned():
        return values
    return torch.empty_like(values, pin_memory=True).copy_(values)
