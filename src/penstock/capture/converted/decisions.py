"""Truth values: `and`, `or`, `not`, comparisons, and whether Python can decide by itself."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.active import active_tracer
from penstock.capture.converted.checkpoints import Checkpoint
from penstock.capture.converted.lists import TracedList
from penstock.capture.predicates import predicate
from penstock.capture.recording import record
from penstock.capture.traced_tensor import TracedDimension, TracedTensor
from penstock.ir.program import Constant, TorchCall
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "is": operator.is_,
    "is not": operator.is_not,
}

#: Whole numbers may be divided by zero, which a program must not do before it has looked.
_MAY_FAIL = ("div", "mod", "remainder", "getitem", "pow")


def is_open(value: Any) -> bool:
    """Whether only a run can decide on `value`."""
    if isinstance(value, TracedTensor):
        return value.traced.contents is None
    return isinstance(value, torch.Tensor | TracedList)


def as_predicate(tracer: Tracer, value: Any, what: str) -> TracedTensor:
    """An open value as one that the machine can decide on."""
    if isinstance(value, TracedList):
        count = tracer.tensor(value.count)
        positive: TracedTensor = record(tracer, torch.Tensor.gt, (count, 0), {})
        return positive
    return predicate(tracer, value, what)


def as_bool(tracer: Tracer, value: Any, what: str) -> TracedTensor:
    """An open value as a traced truth value."""
    holds = as_predicate(tracer, value, what)
    if holds.traced.fakes[0].dtype is torch.bool:
        return holds
    truth: TracedTensor = record(tracer, torch.Tensor.ne, (holds, 0), {})
    return truth


def not_(value: Any) -> Any:
    """`not value`."""
    tracer = active_tracer()
    if tracer is None or not is_open(value):
        return not value
    return record(tracer, torch.Tensor.logical_not, (as_bool(tracer, value, "not"),), {})


def and_(first: Any, *others: Callable[[], Any]) -> Any:
    """`first and others[0]() and ...`."""
    return _chosen(first, others, is_and=True)


def or_(first: Any, *others: Callable[[], Any]) -> Any:
    """`first or others[0]() or ...`."""
    return _chosen(first, others, is_and=False)


def _chosen(value: Any, others: tuple[Callable[[], Any], ...], *, is_and: bool) -> Any:
    tracer = active_tracer()
    for number, other in enumerate(others):
        if tracer is not None and is_open(value):
            return _open_chosen(tracer, value, others[number:], is_and)
        if bool(value) is not is_and:
            return value
        value = other()
    return value


def _open_chosen(
    tracer: Tracer, value: Any, others: tuple[Callable[[], Any], ...], is_and: bool
) -> Any:
    """The rest of the chain, looked at only where it has to be."""
    rest, *more = others

    def remaining() -> Any:
        return _chosen(rest(), tuple(more), is_and=is_and)

    if _is_truth(value):
        start = Checkpoint(tracer)
        right = remaining()
        if _is_truth(right) and all(_is_harmless(node) for node in start.later_nodes()):
            function = torch.Tensor.logical_and if is_and else torch.Tensor.logical_or
            right = tracer.tensor(right)
            return record(tracer, function, (tracer.tensor(value), right), {})
        start.restore()
    from penstock.capture.converted.branches import choose

    what = "and" if is_and else "or"
    pred = as_predicate(tracer, value, what)
    is_truth = isinstance(value, TracedList) or _is_truth(value)

    def kept() -> Any:
        return not is_and if is_truth else value

    def looked_at() -> Any:
        found = remaining()
        return _as_truth(tracer, found, what) if is_truth else found

    arms = (looked_at, kept) if is_and else (kept, looked_at)
    return choose(tracer, pred, *arms, what=what)


def _as_truth(tracer: Tracer, value: Any, what: str) -> Any:
    return as_bool(tracer, value, what) if is_open(value) else bool(value)


def _is_truth(value: Any) -> bool:
    """Whether a value is one traced bool, or a Python one."""
    if isinstance(value, TracedTensor):
        type_ = value.traced.value.type
        return isinstance(type_, TensorType) and type_.is_scalar and type_.dtype == "bool"
    return isinstance(value, bool)


def _is_harmless(node: Any) -> bool:
    """Whether a node is arithmetic on single numbers, which may run in vain."""
    if isinstance(node.operation, Constant):
        return True
    if not isinstance(node.operation, TorchCall):
        return False
    name = node.operation.name.lower()
    if any(part in name for part in _MAY_FAIL):
        return False
    types = [value.type for value in (*node.inputs, *node.outputs)]
    return all(isinstance(type_, TensorType) and type_.is_scalar for type_ in types)


def compare(name: str, left: Any, right: Any) -> Any:
    """A comparison that a loop goes on by, or `in`: sizes in it are values of the program."""
    tracer = active_tracer()
    if name in ("in", "not in"):
        found = _contains(tracer, left, right)
        return found if name == "in" else not_(found)
    if tracer is not None:
        for side in (left, right):
            if isinstance(side, TracedDimension):
                tracer.dimensions.require_dynamic(side.origins)
    return _OPERATORS[name](left, right)


def chain(names: tuple[str, ...], left: Any, right: Any, *others: Callable[[], Any]) -> Any:
    """`left < right < others[0]() ...`, each operand evaluated once, and only as far as needed."""
    name, *rest = names
    holds = (
        compare(name, left, right) if name in ("in", "not in") else _OPERATORS[name](left, right)
    )
    if not others:
        return holds
    return and_(holds, lambda: chain(tuple(rest), right, others[0](), *others[1:]))


def _contains(tracer: Tracer | None, item: Any, container: Any) -> Any:
    is_plain = isinstance(container, list | tuple | set | frozenset | range)
    if tracer is None or not is_open(item) or not is_plain:
        return item in container
    found: Any = False
    for element in container:
        found = or_(found, partial(operator.eq, item, element))
    return found
