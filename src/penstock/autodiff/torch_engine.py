"""The one place that asks torch about the state in which a forward or backward pass runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from penstock.calls.autocast import OFF, autocast_as


def keeps_graph() -> bool:
    """Whether the backward pass at work was asked to retain the graph; only inside one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def looks_for_nan() -> bool:
    """Whether anomaly mode looks for NaN."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


@contextmanager
def without_modes() -> Iterator[None]:
    """Run batched code as it is: autocast has left its casts in it, and anomaly mode would look
    into traces.
    """
    with ExitStack() as stack:
        stack.enter_context(autocast_as(OFF))
        if torch.is_anomaly_enabled():
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        yield
