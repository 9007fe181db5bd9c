"""The one place that asks torch about the state in which a forward or backward pass runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

#: For each kind of device, the dtype of its autocast; None where it is off.
Autocast = tuple[tuple[str, torch.dtype | None], ...]

_NO_AUTOCAST: Autocast = (("cpu", None), ("cuda", None))


def keeps_graph() -> bool:
    """Whether the backward pass at work was asked to retain the graph; only inside one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())  # type: ignore[attr-defined]


def looks_for_nan() -> bool:
    """Whether anomaly mode looks for NaN."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def current_autocast() -> Autocast:
    """The state of autocast here."""
    return tuple((device, _autocast_dtype(device)) for device, _ in _NO_AUTOCAST)


def _autocast_dtype(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


@contextmanager
def autocast_as(state: Autocast) -> Iterator[None]:
    """The state of autocast as it was elsewhere."""
    with ExitStack() as stack:
        for device, dtype in state:
            if dtype != _autocast_dtype(device):
                on = torch.autocast(device, dtype, enabled=dtype is not None)
                stack.enter_context(on)
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """Run batched code as it is: autocast has left its casts in it, and anomaly mode would look into traces."""
    with ExitStack() as stack:
        stack.enter_context(autocast_as(_NO_AUTOCAST))
        if torch.is_anomaly_enabled():
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        yield
