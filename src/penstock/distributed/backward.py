"""The backward pass of a call in several processes: the reversed schedule on the same ranks.

Rows that were sent have their gradients sent back, with a mark for each that has one; what comes
back is added where the rows were made. Messages have the sizes of the forward pass, whatever has
gradients: so all ranks know them. Cotangents of results count once, on the rank that made the
results. In the end gradients of inputs are the same on all ranks, and those of captured tensors on
the ranks that use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.autodiff.call import DifferentiableCall, chosen
from penstock.autodiff.ends import CallEnds
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.torch_engine import keeps_graph, without_modes
from penstock.autodiff.way_back import WayBack
from penstock.distributed.agreement import agree_on_backward
from penstock.distributed.gradient_graph import graph_of_gradients
from penstock.distributed.messages import RollingDigest, aligned
from penstock.distributed.run import PlacedTapedRun
from penstock.distributed.sums import sum_gradients
from penstock.distributed.turns import Crossing, Rows
from penstock.distributed.users import ranks_of_captures
from penstock.plan.schedule import Picks, Span, slot_count, slots_of


def go_backward(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """Gradients of a call's tensors. Only inside a backward pass of torch."""
    if torch.is_grad_enabled():
        return graph_of_gradients(made, grads)
    run = made.run
    assert isinstance(run, PlacedTapedRun)
    keep = keeps_graph()
    transport, call = run.transport, f"the backward pass of call {run.call}"
    with without_modes(), torch.no_grad(), transport.backward_lock:
        agree_on_backward(run, _with_gradients(made, grads))
        with transport.guarded(call):
            transport.digest = RollingDigest(run.digest + b"backward").value
            reversal = PlacedReversal(run, keep, checks_nan=False)
            _seed(made, run, reversal, grads)
            reversal.run(run.tape.entries)
            found = CallEnds(made).gradients(reversal)
            everyone = (1 << transport.size) - 1
            captures = ranks_of_captures(made.executable, everyone)
            users = [
                everyone if place.capture is None else captures.get(place.capture, 0)
                for place in made.places
            ]
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


class PlacedReversal(Reversal):
    """One backward pass over the tape of this rank's part."""

    taped: PlacedTapedRun

    def run(self, entries: Sequence[Any]) -> WayBack | None:
        """Go through a tape from its end; the way is known only as gradients arrive."""
        for entry in reversed(entries):
            if isinstance(entry, Crossing):
                self._return(entry)
            else:
                self._run_step(entry, self._reverse(entry))
        self._flush_windows()
        return None

    def _return(self, crossing: Crossing) -> None:
        """Gradients of rows go back to where the rows came from."""
        rows = crossing.copy.target
        kind = self.extents[rows.arena][0]
        dtype: torch.dtype = getattr(torch, kind.dtype)
        transport = self.taped.transport
        if not (dtype.is_floating_point or dtype.is_complex):
            return
        if transport.rank == crossing.target:
            transport.send(self._taken(rows), crossing.source, "gradients")
        elif transport.rank == crossing.source:
            count = slot_count(rows)
            size = aligned(count) + count * int(np.prod(kind.shape)) * dtype.itemsize
            room = Rows((size,), torch.uint8, torch.device(kind.device), "gradients")
            told = transport.receive(room, crossing.target)
            self._add(crossing.copy.source, told)
        else:
            transport.skip()

    def _taken(self, target: Span | Picks) -> torch.Tensor:
        """Gradients of rows that were received, each with a mark; they are not there any more."""
        arena, slots = self.arena(target.arena), slots_of(target)
        present = arena.present[slots]
        marks = np.zeros(aligned(len(slots)), np.uint8)
        marks[: len(slots)] = present
        rows = arena.gather(slots).contiguous().reshape(-1).view(torch.uint8)
        arena.clear(slots)
        return torch.cat((torch.from_numpy(marks).to(rows.device), rows))

    def _add(self, source: Span | Picks, told: torch.Tensor) -> None:
        arena, slots = self.arena(source.arena), slots_of(source)
        marks = told[: len(slots)].cpu().numpy().astype(np.bool_)
        if marks.any():
            rows = told[aligned(len(slots)) :].view(arena.values.dtype)
            rows = rows.view(len(slots), *arena.kind.shape)
            held = rows if marks.all() else rows[torch.from_numpy(marks).to(rows.device)]
            arena.accumulate(slots[marks], held)
