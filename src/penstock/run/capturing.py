"""Whether this thread captures a CUDA graph: what is then copied must live as long as the graph."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import torch


class _State(threading.local):
    is_active = False


_state = _State()

#: Captures wait for the device and tidy memory: one at a time.
_capturing = threading.Lock()


def capture(run: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """What is launched inside as a graph; nothing is run. Raises where nothing was launched: the
    work went elsewhere, and a graph without it would leave old values.
    """
    graph = torch.cuda.CUDAGraph()
    _state.is_active = True
    try:
        with (
            _capturing,
            warnings.catch_warnings(record=True) as told,
            torch.cuda.device(device),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            run()
    finally:
        _state.is_active = False
    if any("CUDA Graph is empty" in str(warning.message) for warning in told):
        raise RuntimeError("nothing was launched while a plan was captured")
    return graph


def is_capturing() -> bool:
    """Whether what is launched now becomes part of a graph."""
    return _state.is_active


def refuse_while_capturing() -> None:
    """Raise where host memory that soon ends would be copied by a graph."""
    if _state.is_active:
        raise RuntimeError("slots were brought to the device while a plan was captured")
