"""What a branch or a loop decides on: one traced value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.location import user_line
from penstock.capture.recording import record
from penstock.capture.refusals import describe
from penstock.capture.traced_tensor import TracedDimension, TracedTensor
from penstock.errors import PredicateError, report
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def is_decided(value: Any) -> bool:
    """Whether Python itself can decide on `value` while tracing."""
    return isinstance(value, bool | int | float) and not isinstance(value, TracedDimension)


def predicate(tracer: Tracer, value: Any, what: str) -> TracedTensor:
    """`value` as one traced number or truth value; a comparison with zero is the machine's."""
    if isinstance(value, bool | int | float | torch.Tensor):
        traced = tracer.tensor(value)
        type_ = traced.traced.value.type
        assert isinstance(type_, TensorType)
        if type_.is_scalar:
            return traced
        if all(size == 1 for size in type_.shape):
            scalar: TracedTensor = record(tracer, torch.Tensor.reshape, (traced, ()), {})
            return scalar
    raise PredicateError(
        report(
            f"{what} must be one value that is true or false.",
            where=user_line(),
            facts=[
                ("predicate", describe(value)),
                ("expected", "bool[], or a Python bool or number"),
            ],
            todo="Reduce it to one element first, e.g. with .all() or .any().",
        )
    )
