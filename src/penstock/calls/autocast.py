"""The state of `torch.autocast`, as plain data that a program can keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch

#: For each kind of device, the name of the dtype that autocast uses; None where it is off.
Autocast = tuple[tuple[str, str | None], ...]

OFF: Autocast = (("cpu", None), ("cuda", None))


def current_autocast() -> Autocast:
    """The state of autocast here."""
    return tuple((device, _dtype(device)) for device, _ in OFF)


def _dtype(device: str) -> str | None:
    if not torch.is_autocast_enabled(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def autocast_as(state: Autocast) -> AbstractContextManager[None]:
    """The state of autocast as it was elsewhere; nothing where `state` is empty."""
    is_here = all(dtype == _dtype(device) for device, dtype in state)
    return _NOTHING if is_here else _changed(state)


_NOTHING = nullcontext()


@contextmanager
def _changed(state: Autocast) -> Iterator[None]:
    with ExitStack() as stack:
        for device, dtype in state:
            if dtype != _dtype(device):
                kind = None if dtype is None else getattr(torch, dtype)
                stack.enter_context(torch.autocast(device, kind, enabled=dtype is not None))
        yield
