"""One backward pass, from cotangents of outputs to gradients of tensors, for any tape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.autodiff.anomalies import place_of
from penstock.autodiff.bounded.reversal import graph_for, one_at_a_time, rest, reversal_of, tell
from penstock.autodiff.captured_ways import replay_way, require_values
from penstock.autodiff.ends import Ends
from penstock.autodiff.nans import NanFound
from penstock.autodiff.poured import poured_gradients, rest_poured
from penstock.autodiff.replay import replay_gradients
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.strip_way import go_through
from penstock.autodiff.torch_engine import keeps_graph, looks_for_nan, refuse_batched, without_modes
from penstock.plan.schedule import Integers
from penstock.run.memory.exhaustion import note_exhausted


def go_backward(ends: Ends, grads: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """Reverse the tape; replay it where the gradients must be differentiable themselves. Only
    inside a backward pass of torch.
    """
    keep = keeps_graph() or ends.is_one_of_several
    refuse_batched(grads)
    require_values(ends.run)
    recorder = ends.run.recorder
    checks_nan = looks_for_nan() or (recorder is not None and recorder.checks_nan)
    with one_at_a_time(ends.run):
        try:
            with without_modes():
                if torch.is_grad_enabled():
                    return _replay(ends, grads, keep)
                return _reverse(ends, grads, keep, checks_nan)
        except Exception as error:
            note_exhausted(error, ends.run, None, 0, ".backward")
            raise
        finally:
            if recorder is not None:
                recorder.describe_all()
            rest(ends.run)
            rest_poured(ends.run)


def _replay(
    ends: Ends, grads: Sequence[torch.Tensor | None], keep: bool
) -> list[torch.Tensor | None]:
    graph = graph_for(ends.run)
    found = replay_gradients(ends, grads, keep, graph)
    tell(ends.run, graph)
    return found


def _reverse(
    ends: Ends, grads: Sequence[torch.Tensor | None], keep: bool, checks_nan: bool
) -> list[torch.Tensor | None]:
    with torch.no_grad():
        if not keep and not checks_nan:
            gradients = poured_gradients(ends, lambda own: seed(ends, own, grads))
            if gradients is not None:
                return gradients
        reversal = reversal_of(ends.run, keep, checks_nan)
        known = ends.known_way(grads)
        if known is not None and not keep and not checks_nan:
            replayed = replay_way(ends, known, lambda own: seed(ends, own, grads))
            if replayed is not None:
                return ends.gradients(replayed)
        seed(ends, reversal, grads)
        try:
            if ends.run.tape.has_strips and ends.run.recorder is None and not checks_nan:
                go_through(reversal, ends.run.tape)
            elif known is not None:
                reversal.run_again(ends.entries, known)
            else:
                way = reversal.run(ends.entries)
                if ends.keeps_ways:
                    ends.keep_way(grads, way)
        except NanFound as found:
            raise place_of(found, ends) from None
        return ends.gradients(reversal)


def seed(ends: Ends, reversal: Reversal, grads: Sequence[torch.Tensor | None]) -> None:
    """Put the cotangents of the outputs into the slots of the results."""
    by_arena: dict[int, list[tuple[Integers, torch.Tensor]]] = {}
    for number, slots, grad in ends.cotangents(grads):
        rows = grad.reshape(len(slots), *reversal.extents[number][0].shape)
        by_arena.setdefault(number, []).append((slots, rows))
    for number, parts in by_arena.items():
        if len(parts) == 1:
            reversal.arena(number).accumulate(*parts[0])
            continue
        slots = np.concatenate([slots for slots, _ in parts])
        reversal.arena(number).accumulate(slots, torch.cat([rows for _, rows in parts]))
