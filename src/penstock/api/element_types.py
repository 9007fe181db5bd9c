"""What a function would return, as types only, for sequences that have no element to run it on.

The function runs once on torch's fake tensors, which have types but no contents. A branch on a fake
predicate takes the first branch that is not being explored already, so that recursion ends at its
base case; a loop runs no iteration. Both are sound because branches agree in type and loops keep
theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from penstock.capture.eager_keys import exploration
from penstock.capture.location import user_line
from penstock.errors import StructureError, report


class _Exploration(threading.local):
    def __init__(self) -> None:
        #: The branches being explored on this thread, outermost first, by their code.
        self.active: list[object] = []
        #: How many explorations are under way, one inside the other.
        self.depth = 0


_exploration = _Exploration()


def output_types(fn: Callable[..., Any], what: str, make_arguments: Callable[[], Any]) -> Any:
    """What `fn(*make_arguments())` returns, with fake tensors for leaves."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _exploration.depth += 1
    try:
        with torch.no_grad(), exploration(), mode:
            return fn(*make_arguments())
    except (DataDependentOutputException, RecursionError) as error:
        raise StructureError(
            report(
                f"{what}: the element type of an empty result cannot be found.",
                where=user_line(),
                facts=[("length", "0"), ("cause", f"the function needs values: {error}")],
                todo="Branch around the empty sequence with cond.",
            )
        ) from error
    finally:
        _exploration.depth -= 1


def is_unknown(value: Any) -> bool:
    """Whether `value` has a type but no contents; any tensor has none while types are explored."""
    is_tensor = isinstance(value, torch.Tensor)
    return isinstance(value, FakeTensor) or (is_tensor and bool(_exploration.depth))


def explore(branches: Sequence[Callable[..., Any]], operands: tuple[Any, ...]) -> Any:
    """What one of `branches` returns, as types only."""
    for branch in branches:
        code = getattr(branch, "__code__", branch)
        if code in _exploration.active:
            continue
        _exploration.active.append(code)
        try:
            return branch(*operands)
        finally:
            _exploration.active.pop()
    raise RecursionError("every branch leads back to itself")
