"""Recorded tensors that outlive their scope: they become ordinary tensors when first used.

All that are still alive then come out of one autograd node, so that a backward pass through many of
them goes through the recorded steps once.
"""

from __future__ import annotations

from typing import Any

import torch

from penstock.calls.structure import flatten, unflatten
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.location import user_line
from penstock.errors import RecordedTensorError, report


def real_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments with ordinary tensors in the place of recorded ones."""
    leaves, structure = flatten((args, kwargs))
    found: tuple[Any, Any] = unflatten(
        structure,
        [real_tensor(leaf) if isinstance(leaf, LazyTensor) else leaf for leaf in leaves],
    )
    return found


def real_tensor(lazy: LazyTensor) -> torch.Tensor:
    """The ordinary tensor that a recorded one became."""
    if lazy._real is None:
        scope = lazy._scope
        if scope.is_open:
            raise _elsewhere(lazy)
        if scope.failure is not None:
            raise _without_contents(lazy, scope.failure)
        scope.realise_survivors(lazy)
    assert lazy._real is not None
    return lazy._real


def _elsewhere(lazy: LazyTensor) -> RecordedTensorError:
    return RecordedTensorError(
        report(
            "A recorded tensor was used outside of the code that records it.",
            where=user_line(),
            facts=[("tensor", str(lazy._kind)), ("its scope", "still open, on another thread")],
            todo="Use it where it was made, or after the map or the batching scope is over.",
        )
    )


def _without_contents(lazy: LazyTensor, failure: BaseException) -> RecordedTensorError:
    return RecordedTensorError(
        report(
            "A recorded tensor has no contents: its scope failed before they were computed.",
            where=user_line(),
            facts=[
                ("tensor", str(lazy._kind)),
                ("its scope", f"{type(failure).__name__}: {failure}"),
            ],
            todo="Mend the failure and run the code again; drop tensors of the failed run.",
        )
    )
