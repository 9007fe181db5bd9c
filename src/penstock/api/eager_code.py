"""`ps.map` on eager code, and `ps.batching`: unchanged PyTorch code, recorded and run batched.

In a map each instance runs in a fiber of its own; where its code reads a value, only that fiber
waits. In a batching scope there is one line of code, and a read computes what is recorded so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch

from penstock.api.eager_calls import runs_eagerly
from penstock.api.instances import common_count
from penstock.api.markers import Shared
from penstock.api.outputs import in_form_of_values
from penstock.calls.structure import flatten, unflatten
from penstock.capture import eager_keys
from penstock.capture.lazy.active import active_scope
from penstock.capture.lazy.candidates import find_candidates
from penstock.capture.lazy.fiber_calls import Wait
from penstock.capture.lazy.fibers import Fibers
from penstock.capture.lazy.patches import Place, mark_unit, patched
from penstock.capture.lazy.scope import Scope
from penstock.capture.lazy.session import open_scope, recording_in
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.location import user_line
from penstock.capture.static import Static
from penstock.errors import ArgumentError, report
from penstock.plan.schedule import Integers
from penstock.run.recording import recorded_call
from penstock.run.seeds import Seed

GRANULARITIES = ("op", "module", "graph", "auto")


def map_eager(
    fn: Callable[..., Any],
    columns: Sequence[Any],
    out: str,
    granularity: str,
    on_error: str,
    shared: dict[str, Any],
) -> Any:
    """The outputs of eager code for many instances."""
    count = common_count(columns)
    if count == 0:
        return []
    calls = [partial(fn, *row, **shared) for row in _rows(columns, count)]
    if runs_eagerly():
        return in_form_of_values(out, _run_eagerly(calls, on_error))
    outer = active_scope()
    if outer is not None:
        return in_form_of_values(out, _run_inside(outer, calls, on_error))
    name = getattr(fn, "__name__", type(fn).__name__)
    with recorded_call(name, count) as recorder:
        places = _candidates(fn, granularity)
        with open_scope(granularity, Seed(), recorder) as scope, patched(scope.units, places):
            results = _run_in_fibers(scope, calls, name, on_error)
        for number, error in scope.failed.items():
            results[number] = error
        ordinary = _ordinary(scope, results)
    return in_form_of_values(out, ordinary)


@contextmanager
def batching(granularity: str = "auto") -> Iterator[None]:
    """Record the eager code inside, and run it batched.

    A read of a value computes what has been recorded so far; leaving the scope computes the rest.
    Tensors made inside are ordinary ones afterwards, and gradients flow through them.

    Arguments:
        granularity: what is recorded as one step, as for `ps.map`.

    >>> import torch
    >>> with batching():
    ...     sums = [torch.full((3,), float(n)).sum() for n in range(3)]
    >>> torch.stack(sums)
    tensor([0., 3., 6.])
    """
    check_choice("granularity", granularity, GRANULARITIES)
    if active_scope() is not None or runs_eagerly():
        yield
        return
    with (
        recorded_call("batching", 1) as recorder,
        open_scope(granularity, Seed(), recorder) as scope,
        patched(scope.units),
        recording_in(scope),
    ):
        yield


def _candidates(fn: Callable[..., Any], granularity: str) -> Sequence[Place]:
    """Functions of the mapped code that ask whether they are units."""
    return find_candidates(fn).places if granularity in ("auto", "graph") else ()


def unit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record every call of this function or method as one step, where eager code is mapped.

    The function must depend on nothing but its arguments and what its object and its module's
    globals hold, and must change nothing; it is traced once for each kind of arguments. Outside of
    `ps.map` and `ps.batching` it runs as it is.

    >>> import torch
    >>> @unit
    ... def cell(x, h):
    ...     return torch.tanh(x + h)
    >>> cell(torch.zeros(2), torch.zeros(2))
    tensor([0., 0.])
    """
    if not isinstance(function, FunctionType):
        raise ArgumentError(
            report(
                "unit: only Python functions and methods can be marked.",
                where=user_line(),
                facts=[("given", type(function).__name__), ("expected", "a function")],
                todo="Put @ps.unit above a def; calls of nn.Modules are units without it.",
            )
        )
    return mark_unit(function)


def check_choice(name: str, given: Any, choices: Sequence[str]) -> None:
    """Refuse an option that does not exist."""
    if given not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(
            report(
                f"{name} must be one of the names that exist.",
                where=user_line(),
                facts=[(name, repr(given)), ("expected", listed)],
                todo=f"Leave {name} out for the default.",
            )
        )


def _rows(columns: Sequence[Any], count: int) -> Iterator[list[Any]]:
    taken = [
        [column.value] * count
        if isinstance(column, Shared | Static)
        else column.unbind(0)
        if isinstance(column, torch.Tensor)
        else column
        for column in columns
    ]
    return ([column[number] for column in taken] for number in range(count))


class FiberWaits:
    """Waits of the fibers of one map: answered together, by one flush."""

    def __init__(self, scope: Scope, describe: Callable[[int], str]) -> None:
        self._scope = scope
        #: What to say of an instance that failed.
        self.describe = describe
        self.fibers = Fibers(self._flush)

    def wait(self, values: Integers) -> list[torch.Tensor]:
        """The contents of values, once they are there."""
        scope, instance = self._scope, self._scope.instance
        answer: list[torch.Tensor] = self.fibers.wait(values)
        scope.switch(instance)
        return answer

    def wait_for_turn(self) -> None:
        """Go on when all earlier instances have ended."""
        instance = self._scope.instance
        self.fibers.wait_for_turn()
        self._scope.switch(instance)

    def flush(self) -> None:
        """Compute what is recorded; an error says which instance it belongs to."""
        try:
            self._scope.flush()
        except Exception as error:
            instance = self._scope.run.failed_instance
            if instance is not None:
                error.add_note(self.describe(self._scope.roots[instance]))
            raise

    def _flush(self, waits: list[Wait]) -> None:
        self.flush()
        failed, roots = self._scope.failed, self._scope.roots
        going = [wait for wait in waits if roots[wait.number] not in failed]
        values = np.concatenate([np.empty(0, np.int64), *(wait.request for wait in going)])
        contents = iter(self._scope.run.read(self._scope.renamed(values)))
        for wait in going:
            wait.answer = [next(contents) for _ in wait.request]
        for wait in waits:
            wait.error = failed.get(roots[wait.number])


def _run_in_fibers(
    scope: Scope, calls: Sequence[Callable[[], Any]], name: str, on_error: str
) -> list[Any]:
    waits = FiberWaits(scope, f"in instance {{}} of {name}.map".format)
    scope.waits = waits
    scope.new_instances(len(calls))
    scope.returns_errors = on_error == "return"
    recorded = [partial(_record, scope, number, call) for number, call in enumerate(calls)]
    outcomes = waits.fibers.run(recorded, on_error=on_error, describe=waits.describe)  # type: ignore[arg-type]
    waits.flush()
    return [item.value if item.error is None else item.error for item in outcomes]


def _record(scope: Scope, number: int, call: Callable[[], Any]) -> Any:
    scope.switch(number)
    with recording_in(scope):
        return call()


def _run_inside(scope: Scope, calls: Sequence[Callable[[], Any]], on_error: str) -> list[Any]:
    """A map inside code that is recorded already: part of that recording."""
    if not isinstance(scope.waits, FiberWaits):
        return _run_plainly(calls, on_error)
    instance = scope.instance
    numbers = scope.new_instances(len(calls), inside=True)
    recorded = [partial(_continue, scope, n, call) for n, call in zip(numbers, calls, strict=True)]
    outcomes = scope.waits.fibers.run(recorded, numbers=numbers, on_error=on_error)  # type: ignore[arg-type]
    scope.switch(instance)
    return [item.value if item.error is None else item.error for item in outcomes]


def _continue(scope: Scope, number: int, call: Callable[[], Any]) -> Any:
    scope.switch(number)
    return call()


def _run_eagerly(calls: Sequence[Callable[[], Any]], on_error: str) -> list[Any]:
    """A plain loop, with the random numbers that recorded code would draw."""
    seed = Seed()

    def call(number: int) -> Any:
        with eager_keys.instance(seed, number):
            return calls[number]()

    return _run_plainly([partial(call, number) for number in range(len(calls))], on_error)


def _run_plainly(calls: Sequence[Callable[[], Any]], on_error: str) -> list[Any]:
    return [_attempt(call, on_error) for call in calls]


def _attempt(call: Callable[[], Any], on_error: str) -> Any:
    try:
        return call()
    except Exception as error:
        if on_error == "raise":
            raise
        return error


def _ordinary(scope: Scope, results: list[Any]) -> list[Any]:
    """Results with ordinary tensors in the place of recorded ones."""
    flat = [flatten(result) for result in results]
    lazies = [leaf for leaves, _ in flat for leaf in leaves if isinstance(leaf, LazyTensor)]
    distinct = list({id(lazy): lazy for lazy in lazies}.values())
    for lazy, tensor in zip(distinct, scope.realise(distinct), strict=True):
        lazy._real = tensor
    return [
        unflatten(structure, [_real(leaf) for leaf in leaves])
        if any(isinstance(leaf, LazyTensor) for leaf in leaves)
        else result
        for result, (leaves, structure) in zip(results, flat, strict=True)
    ]


def _real(leaf: Any) -> Any:
    return leaf._real if isinstance(leaf, LazyTensor) else leaf
