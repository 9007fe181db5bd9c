"""The one place that asks torch about the state in which a forward or backward pass runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from penstock.calls.autocast import OFF, autocast_as
from penstock.errors import ArgumentError, report


def keeps_graph() -> bool:
    """Whether the backward pass at work was asked to retain the graph; only inside one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def refuse_batched(grads: Sequence[torch.Tensor | None]) -> None:
    """Refuse cotangents of which a `vmap` gives many at once: slots hold one."""
    given = next((grad for grad in grads if grad is not None), None)
    functorch = torch._C._functorch
    if given is None or not (
        functorch.is_batchedtensor(given) or functorch.is_legacy_batchedtensor(given)
    ):
        return
    raise ArgumentError(
        report(
            "A backward pass through a map or program takes one cotangent for each output.",
            facts=[("cotangents", "a batch, from vectorize=True, is_grads_batched=True or vmap")],
            todo="Leave out vectorize=True or is_grads_batched=True.",
        )
    )


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
