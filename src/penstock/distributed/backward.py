"""The backward pass of a call in several processes: the reversed schedule on the same ranks.

Cotangents of results count once, on the rank that made the results. In the end gradients of inputs
are the same on all ranks, and those of captured tensors on the ranks that use them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.autodiff.bounded.reversal import rest
from penstock.autodiff.call import DifferentiableCall, chosen
from penstock.autodiff.ends import CallEnds
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.torch_engine import keeps_graph, without_modes
from penstock.distributed.agreement import agree_on_backward
from penstock.distributed.gradient_graph import graph_of_gradients
from penstock.distributed.messages import RollingDigest
from penstock.distributed.reversal import PlacedReversal
from penstock.distributed.run import PlacedTapedRun
from penstock.distributed.sums import sum_gradients
from penstock.distributed.users import shared_tensors, users_of


def go_backward(
    made: DifferentiableCall,
    grads: Sequence[torch.Tensor | None],
    kind: type[PlacedReversal],
) -> Sequence[torch.Tensor | None]:
    """Gradients of a call's tensors. Only inside a backward pass of torch."""
    if torch.is_grad_enabled():
        return graph_of_gradients(made, grads)
    run = made.run
    assert isinstance(run, PlacedTapedRun)
    keep = keeps_graph()
    transport, call = run.transport, f"the backward pass of call {run.call}"
    users = users_of(made, transport.size)
    with without_modes(), torch.no_grad(), transport.lock:
        agree_on_backward(run, _with_gradients(made, grads), shared_tensors(made, users))
        with transport.guarded(call):
            transport.digest = RollingDigest(run.digest + b"backward").value
            reversal = kind(run, keep, checks_nan=False)
            _seed(made, run, reversal, grads)
            try:
                reversal.run(run.tape.entries)
            finally:
                rest(run)
            found = CallEnds(made).gradients(reversal)
            total = sum_gradients(transport, made.tensors, found, users)
            transport.finish()
    return total


def _with_gradients(made: DifferentiableCall, grads: Sequence[torch.Tensor | None]) -> bytes:
    """Which outputs of which instances have gradients, whether they came as one tensor or not."""
    marks = np.zeros((len(made.entry.outputs), made.count), np.bool_)
    for (output, instance), grad in zip(made.flowing, grads, strict=True):
        marks[output, chosen(instance)] = grad is not None
    return marks.tobytes()


def _seed(
    made: DifferentiableCall,
    run: PlacedTapedRun,
    reversal: Reversal,
    grads: Sequence[torch.Tensor | None],
) -> None:
    """Put the cotangents of results into their slots, on the rank that they came from."""
    for number, slots, grad in made.cotangents(grads):
        if run.is_mine(number):
            rows = grad.reshape(len(slots), *reversal.extents[number][0].shape)
            reversal.arena(number).accumulate(slots, rows)
