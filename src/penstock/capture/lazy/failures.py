"""Failures of a flush that belong to one instance, where the others are to go on.

The flush is undone and made again without the steps of that instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from penstock.capture.lazy.library import library
from penstock.plan.recorded import Recorded
from penstock.plan.step_kinds import Row
from penstock.run.recorded import RecordedRun


def flush_without_failures(
    run: RecordedRun,
    recorded: Recorded,
    tensors: Sequence[Sequence[torch.Tensor]],
    roots: Sequence[int],
) -> dict[int, Exception]:
    """Run what was recorded; the instances that failed, each with its error.

    `roots` says which instance each belongs to: maps inside an instance fail with it.
    """
    failed: dict[int, Exception] = {}
    checkpoint = run.checkpoint()
    while True:
        try:
            run.flush(recorded, tensors)
        except Exception as error:
            instance = run.failed_instance
            if instance is None or roots[instance] in failed:
                raise
            failed[roots[instance]] = error
            run.go_back_to(checkpoint)
            checkpoint = run.checkpoint()
            recorded = _without(recorded, np.array(roots)[recorded.instances] == roots[instance])
        else:
            return failed


def _without(recorded: Recorded, goes: npt.NDArray[np.bool_]) -> Recorded:
    """All records but some."""
    stays = ~goes
    kinds = [library.kinds[number] for number in recorded.kinds.tolist()]
    taken = [sum(isinstance(operand, Row) for operand in kind.operands) for kind in kinds]
    gone = [
        np.arange(first, first + len(kind.results))
        for first, kind, stay in zip(recorded.results.tolist(), kinds, stays, strict=True)
        if not stay
    ]
    lost = np.concatenate([np.empty(0, np.int64), *gone])
    return replace(
        recorded,
        kinds=recorded.kinds[stays],
        operands=recorded.operands[np.repeat(stays, taken)],
        results=recorded.results[stays],
        instances=recorded.instances[stays],
        draws=recorded.draws[stays],
        kept=np.setdiff1d(recorded.kept, lost),
    )
