"""What counts as true, and which branch an index names, when a program simply runs in Python."""

from __future__ import annotations

import math

import torch

from penstock.capture.location import user_line
from penstock.capture.tensor_types import type_of
from penstock.errors import PredicateError, report
from penstock.faults import branch_out_of_range, nan_predicate

#: A tensor with one element, or the Python number for it.
Scalar = torch.Tensor | bool | int | float


def truth(pred: Scalar, what: str) -> bool:
    """Whether `pred` holds. `what` names the predicate in errors, e.g. `cond: pred`."""
    if isinstance(pred, torch.Tensor):
        if pred.numel() != 1:
            raise _not_one_value(pred, what)
        pred = pred.item()
    if not isinstance(pred, (bool, int, float)):
        raise _not_one_value(pred, what)
    if math.isnan(pred):
        raise nan_predicate(what).at(user_line())
    return bool(pred)


def branch_number(index: Scalar, count: int) -> int:
    """`index` as the number of one of `count` branches."""
    number = index.item() if isinstance(index, torch.Tensor) and index.numel() == 1 else index
    if not isinstance(number, int) or isinstance(number, bool):
        raise PredicateError(
            report(
                "switch: index must be one whole number.",
                where=user_line(),
                facts=[("index", _shown(index)), ("expected", "an int or int64[]")],
                todo="Convert it first, e.g. with .to(torch.int64).",
            )
        )
    if not 0 <= number < count:
        raise branch_out_of_range(number, count).at(user_line())
    return number


def _not_one_value(pred: object, what: str) -> PredicateError:
    return PredicateError(
        report(
            f"{what} must be one value that is true or false.",
            where=user_line(),
            facts=[("predicate", _shown(pred)), ("expected", "bool[], or a Python bool or number")],
            todo="Reduce it to one element first, e.g. with .all() or .any().",
        )
    )


def _shown(value: object) -> str:
    return str(type_of(value)) if isinstance(value, torch.Tensor) else type(value).__name__
