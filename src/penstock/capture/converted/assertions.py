"""`assert` on a traced value: checked at run time, for each instance.

A graph has no node without results, so a check is a branch: where the assertion holds, variables
pass through; where it does not, they would come from a step that always fails. The program
remembers which lines are assertions, and what such a failure means there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from penstock.calls.structure import flatten, unflatten
from penstock.capture.active import active_tracer
from penstock.capture.converted.decisions import as_predicate, is_open, not_
from penstock.capture.converted.undefined import Undefined
from penstock.capture.converted.variables import Variables
from penstock.capture.recording import record
from penstock.capture.source import user_source
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.type_rules import is_control_type
from penstock.errors import (
    AssertionFailedError,
    DivisionByZeroError,
    IndexRangeError,
    PenstockError,
    report,
)
from penstock.ir.program import ArrayNew, ArrayRead, Branch
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

#: What is divided by zero where an assertion fails; no other division is likely to have it.
_MARK = 1634956148


class Assertion(NamedTuple):
    """A check that a run makes."""

    text: str
    message: str | None = None
    #: What to raise instead of an error of our own.
    error: BaseException | None = None
    #: Whether only a division can tell of it, and no read.
    divides: bool = False


def assert_(
    test: Any,
    message: Callable[[], Any] | None,
    text: str,
    get: Any,
    set_: Any,
    facts: tuple[tuple[str, str], ...],
) -> None:
    """`assert test, message()`; the variables are those that are read after it."""
    tracer = active_tracer()
    if tracer is None or not is_open(test):
        if not test:
            raise AssertionError if message is None else AssertionError(message())
        return
    said = None if message is None else str(message())
    tracer.assertions[str(user_source())] = Assertion(text, said)
    pred = as_predicate(tracer, test, "assert: the condition")
    _tie(tracer, pred, Variables(get, set_, facts))


def fails(
    test: Any,
    error: Callable[[], Any],
    text: str,
    get: Any,
    set_: Any,
    facts: tuple[tuple[str, str], ...],
) -> bool:
    """Whether to raise now; what a traced value decides is raised at run time."""
    tracer = active_tracer()
    if tracer is None or not is_open(test):
        return bool(test)
    raised = error()
    raised = raised() if isinstance(raised, type) else raised
    tracer.assertions[str(user_source())] = Assertion(f"not ({text})", None, raised)
    _tie(tracer, not_(test), Variables(get, set_, facts))
    return False


def equal_number(
    tracer: Tracer, number: TracedTensor, other: TracedTensor, error: PenstockError
) -> TracedTensor:
    """The whole number, which is there only where it equals the other: `error` is raised elsewhere.

    It is host arithmetic alone, so that loops still count to it.
    """
    tracer.assertions[str(user_source())] = Assertion("", None, error, divides=True)
    is_equal = record(tracer, torch.Tensor.eq, (number, other), {})
    mark = record(
        tracer, torch.Tensor.add, (record(tracer, torch.Tensor.mul, (number, 0), {}), _MARK), {}
    )
    divisor = record(tracer, torch.Tensor.to, (is_equal, torch.int64), {})
    same = record(tracer, torch.Tensor.__floordiv__, (mark, divisor), {})
    checked: TracedTensor = record(
        tracer, torch.Tensor.add, (number, record(tracer, torch.Tensor.sub, (same, _MARK), {})), {}
    )
    return checked


def _tie(tracer: Tracer, pred: TracedTensor, variables: Variables) -> None:
    """Let the variables that are read later depend on the check."""
    values = variables.values()
    names = variables.marked("t") or list(values)
    checked = {name: values[name] for name in names if not isinstance(values[name], Undefined)}
    variables.assign({**values, **_checked(tracer, pred, checked)})


def _checked(tracer: Tracer, pred: TracedTensor, values: dict[str, Any]) -> dict[str, Any]:
    """The values, which are there only where the predicate holds."""
    leaves, structure = flatten(values)
    numbers = [n for n, leaf in enumerate(leaves) if isinstance(leaf, TracedTensor)]
    if not numbers:
        return values
    with tracer.nested_scope() as scope:
        failing = scope.body([tracer.read(_failing(tracer, leaves[n])) for n in numbers])
    with tracer.nested_scope() as scope:
        passing = scope.body([tracer.read(leaves[n]) for n in numbers])
    types = [leaves[n].traced.value.type for n in numbers]
    outputs = tracer.emit(Branch((failing, passing), True), (pred,), types)
    for number, output in zip(numbers, outputs, strict=True):
        old = leaves[number].traced
        leaves[number] = tracer.wrap(
            output, is_control=old.is_control, origins=old.origins, hint=old.hint
        )
    result: dict[str, Any] = unflatten(structure, leaves)
    return result


def _failing(tracer: Tracer, leaf: TracedTensor) -> TracedTensor:
    """A value of the type of `leaf` that no run ever gets."""
    type_ = leaf.traced.value.type
    assert isinstance(type_, TensorType)
    if is_control_type(type_) and type_.dtype == "int64" and leaf.traced.is_control:
        zero = record(tracer, torch.Tensor.sub, (leaf, leaf), {})
        mark = record(tracer, torch.Tensor.add, (zero, _MARK), {})
        failed: TracedTensor = record(tracer, torch.Tensor.__floordiv__, (mark, zero), {})
        return failed
    zero = tracer.tensor(0)
    empty = tracer.emit(ArrayNew(False), (zero,), (ArrayType(type_),))[0]
    from penstock.capture.traced_array import TracedTensorArray

    array = TracedTensorArray(tracer, empty, tracer.scope, (0, 0))
    return tracer.wrap(tracer.emit(ArrayRead(), (array, zero), (type_,))[0])


def failed_assertion(
    error: PenstockError, assertions: dict[str, Assertion]
) -> BaseException | None:
    """What an error of a run says of an assertion; None where it is about something else."""
    lines = str(error).splitlines()
    facts = [line.split() for line in lines[2:-1]]
    is_mark = isinstance(error, DivisionByZeroError) and ["dividend", str(_MARK)] in facts
    is_read = isinstance(error, IndexRangeError) and ["size", "0"] in facts
    where = lines[1].removeprefix("  at ") if len(lines) > 1 else ""
    if not (is_mark or is_read) or where not in assertions:
        return None
    text, message, own, divides = assertions[where]
    if divides and not is_mark:
        return None
    shown = [(fact[0], fact[1]) for fact in facts if fact[0] == "instance"]
    if own is not None:
        named = "".join(f", for instance {number}" for _, number in shown)
        own = copy.copy(own)
        own.add_note(f"raised by the program at {where}{named}")
        return own
    shown.append(("asserted", text))
    if message is not None:
        shown.append(("message", message))
    todo = "Pass arguments for which it holds, or correct the assertion."
    return AssertionFailedError(report("An assertion failed.", where=where, facts=shown, todo=todo))
