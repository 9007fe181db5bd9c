"""`ps.function`: programs as callables.

A function is traced when it is first called with arguments of new types, and compiled; after that,
calls and maps only bind their arguments and run (`api/runs.py`). Inside another trace a call is
recorded; under `set_eager` it is the plain Python call.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, overload

import torch

from penstock.api.batches import Batch, many_instances, one_instance
from penstock.api.collate import CollatedBatch, as_columns, rows_of
from penstock.api.columns import Collected, Spread
from penstock.api.eager_calls import call_eagerly, map_eagerly, plain_arguments, runs_eagerly
from penstock.api.entries import Entry
from penstock.api.instances import common_count
from penstock.api.made_of import MadeOf, has_method
from penstock.api.markers import Shared, unshared
from penstock.api.memory import memory as Memory
from penstock.api.memory import policy_of
from penstock.api.not_compiled import not_compiled
from penstock.api.outputs import check_form, in_form
from penstock.api.refusals import check_depth, check_traceable
from penstock.api.runs import Runs
from penstock.api.traces import Traces, traces_of
from penstock.calls.structure import map_leaves
from penstock.capture.active import active_tracer
from penstock.capture.lazy.active import active_scope
from penstock.capture.lazy.scope import Scope
from penstock.capture.leaves import as_values
from penstock.capture.signatures import Callee
from penstock.capture.static import Static
from penstock.ir.program import Program
from penstock.plan.schedule import Schedule
from penstock.run.recording import profiling
from penstock.run.seeds import Seed
from penstock.run.shipped import shipped_plans


class Function:
    """A Python function that runs as a program. Made by `ps.function`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: dict[str, Any],
        instance: Any = None,
        made_of: MadeOf | None = None,
    ) -> None:
        check_traceable(fn)
        functools.update_wrapper(self, fn)
        self.__wrapped__: Callable[..., Any] = fn
        self._options = options
        self._instance = instance
        self._name = options["name"] or getattr(fn, "__name__", type(fn).__name__)
        self._traces = Traces() if instance is None else traces_of(instance, fn)
        #: Whether it was found in a class, so that its first argument may be an object.
        self._is_method = False
        self._make(made_of or MadeOf(fn))

    def _make(self, made_of: MadeOf) -> None:
        """What calls are bound to; anew where the function was given other code or defaults."""
        fn, instance = self.__wrapped__, self._instance
        bound = fn if instance is None else types.MethodType(fn, instance)
        identity, self._made_of = (id(fn), id(instance)), made_of
        signature = made_of.signature if instance is None else made_of.bound_signature
        autograph = self._options["autograph"]
        self._known_callee = Callee(bound, self._name, identity, signature, autograph)
        self._names = list(signature.parameters)
        self._runs = Runs(self._known_callee, self._traces, self._options)

    @property
    def _callee(self) -> Callee:
        if not self._made_of.is_current():
            self._make(MadeOf(self.__wrapped__))
        return self._known_callee

    def __set_name__(self, owner: type, name: str) -> None:
        self._is_method = True

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        if instance is None:
            self._is_method = True
            return self
        if not self._made_of.is_current():
            self._make(MadeOf(self.__wrapped__))
        return Function(self.__wrapped__, self._options, instance, self._made_of)

    def _of_object(self, args: Sequence[Any]) -> Function | None:
        """The method of the first argument, where `Class.method(object, x)` is called."""
        if not self._is_method or self._instance is not None or not args:
            return None
        instance = unshared(args[0])
        return self.__get__(instance) if has_method(instance, self) else None

    @not_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for one instance."""
        method = self._of_object(args)
        if method is not None:
            return method(*args[1:], **kwargs)
        tracer = active_tracer()
        if tracer is not None:
            return tracer.call(self._callee, args, kwargs)
        if runs_eagerly():
            return call_eagerly(self._callee, args, kwargs, Seed(), 0)
        scope = active_scope()
        if scope is not None:
            return self._call_recorded(scope, args, kwargs)
        batch = one_instance(*self._callee.bind(args, kwargs), self._names)
        return self._runs.one(batch)

    @not_compiled
    def map(self, *columns: Any, out: str = "list", **shared: Any) -> Any:
        """Run the program for many instances at once.

        It equals::

            [f(*row, **shared) for row in zip(*columns)]

        Arguments:
            columns: one per parameter; a list or tuple of values, one for each instance, or a
                tensor with the instances along its first dimension, or `ps.shared(x)`. Or one
                batch that `collate` has made.
            out: "list" for one output per instance; "stack" for the output structure once, each
                leaf stacked; "pad" for the same with each leaf as `Padded(values, lengths)`.
            shared: arguments by name that are the same for all instances.

        Gradients flow as they would through the calls one by one.
        """
        check_form(out)
        method = self._of_object(columns)
        if method is not None:
            return method.map(*columns[1:], out=out, **shared)
        if runs_eagerly():
            return map_eagerly(self._callee, as_columns(columns), out, shared)
        if len(columns) == 1 and isinstance(columns[0], CollatedBatch):
            collated = columns[0]
            with shipped_plans(collated.plans):
                bound = self._bind_columns(collated.columns(), shared, len(collated))
                return self._map_bound(bound, out)
        count = common_count(columns)
        if count == 0:
            return []
        return self._map_bound(self._bind_columns(columns, shared, count), out)

    def _map_bound(self, batch: Batch, out: str) -> Any:
        joined = self._runs.joined(batch) if out == "stack" else None
        if joined is not None:
            return joined
        results = self._runs.rows(batch)
        if out == "list":
            return [entry.traced.rebuild(tensors) for entry, tensors in results]
        leaves = list(zip(*(tensors for _, tensors in results), strict=True))
        return in_form(out, results[0][0].traced.rebuild, leaves)

    def collate(self, examples: Sequence[Any], **shared: Any) -> CollatedBatch:
        """Bind and plan a batch, to be run by `map`: a `collate_fn` for DataLoaders.

        `f.map(f.collate(examples))` equals::

            [f(*example) for example in examples]

        In a worker process of a DataLoader it takes binding and planning off the training process.
        Programs whose control depends on computed values or random numbers are bound only.

        Arguments:
            examples: for each instance its argument, or a tuple of its arguments.
            shared: arguments by name that are the same for all instances, as `map` will get them;
                they do not travel with the batch.

        >>> double = function(lambda x: x * 2)
        >>> double.map(double.collate([torch.tensor(1.0), torch.tensor(2.0)]), out="stack")
        tensor([2., 4.])

        Gradients flow as from `map` with the same columns, but not from one process to another.
        """
        rows = rows_of(examples, self._name)
        pairs = zip(zip(*rows, strict=True), self._column_names(len(rows[0])), strict=True)
        columns = [Collected.of(list(column), name) for column, name in pairs]
        if runs_eagerly():
            return CollatedBatch(columns, len(rows), (), "eager code is not planned")
        batch = self._bind_columns(columns, shared, len(rows))
        return CollatedBatch(columns, len(rows), *self._runs.plan_ahead(batch))

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs; `print` shows it."""
        return self._entry(args, kwargs).program

    def graph(self, *args: Any, **kwargs: Any) -> Any:
        """The graph of primitives that a call with these arguments runs."""
        return self._runs.form_of(self._entry(args, kwargs)).graph

    def schedule(self, *columns: Any, **shared: Any) -> Any:
        """What a map over these columns launches, in order: nothing for no instances."""
        count = common_count(columns)
        if not count:
            return Schedule()
        batch = self._bind_columns(columns, shared, count)
        return self._runs.schedule(batch)

    def save_html(self, path: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Run the program for one instance and write a page that shows it; needs the extra `view`.

        `with ps.profile() as run` around a `map`, then `run.save_html(path)`, shows many instances.
        """
        with profiling() as run, torch.no_grad():
            self(*args, **kwargs)
        run.save_html(path)

    def explain_retraces(self) -> str:
        """How often the function was traced so far, and for each time what had changed."""
        return self._traces.explain(self._name)

    def __repr__(self) -> str:
        return f"<ps.function {self._name}>"

    def __reduce__(self) -> Any:
        if self._instance is not None:
            return getattr, (self._instance, self.__wrapped__.__name__)
        return self.__wrapped__.__qualname__

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        if self._instance is None:
            return self
        instance = memo.get(id(self._instance), self._instance)
        return Function(self.__wrapped__, self._options, instance)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        method = self._of_object(args)
        if method is not None:
            return method._entry(args[1:], kwargs)
        batch = one_instance(*self._callee.bind(args, kwargs), self._names)
        return self._runs.entry_for(batch)

    def _bind_columns(self, columns: Sequence[Any], shared: dict[str, Any], count: int) -> Batch:
        spread = [
            column if isinstance(column, Shared | Static | Collected) else Spread(column, name)
            for column, name in zip(columns, self._column_names(len(columns)), strict=True)
        ]
        args, kwargs = self._callee.bind(tuple(spread), shared)
        return many_instances(args, kwargs, self._names, count)

    def _column_names(self, count: int) -> list[str]:
        """The names of the first parameters; columns that are too many are named by number."""
        surplus = range(len(self._names), count)
        return [*self._names[:count], *(f"column {number}" for number in surplus)]

    def map_returning_errors(self, columns: Sequence[Any], shared: dict[str, Any]) -> list[Any]:
        """`map`, with the exception of an instance that fails in its place."""
        columns = as_columns(columns)
        count = common_count(columns)
        if runs_eagerly() or not count:
            made: list[Any] = map_eagerly(
                self._callee, columns, "list", shared, returns_errors=True
            )
            return made
        batch = self._bind_columns(columns, shared, count)
        return self._runs.rows_or_errors(batch, Seed())

    def _call_recorded(self, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call in eager code that is recorded: one step, or as many as its own code makes."""
        bound = self._callee.bind(args, kwargs)
        plain_args, plain_kwargs = plain_arguments(bound)
        as_program = functools.partial(self._record_program, scope, *bound)
        is_step, returned = scope.units.on_function(
            self.__wrapped__, self._instance, plain_args, plain_kwargs, as_program
        )
        if not is_step:
            returned = self._callee.function(*plain_args, **plain_kwargs)
        return as_values(returned, f"{self._name}: what the function returns", "result")

    def _record_program(self, scope: Scope, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Record a call of a program with control flow as one step, if it can be one."""
        own_args, own_kwargs = map_leaves(unshared, (args, kwargs))
        return self._runs.recorded(scope, one_instance(own_args, own_kwargs, self._names))


@overload
def function(
    fn: Callable[..., Any],
    *,
    autograph: bool = True,
    name: str | None = None,
    memory: Memory | str | None = None,
    max_depth: int = 10_000,
) -> Function: ...
@overload
def function(
    fn: None = None,
    *,
    autograph: bool = True,
    name: str | None = None,
    memory: Memory | str | None = None,
    max_depth: int = 10_000,
) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    fn: Callable[..., Any] | None = None,
    *,
    autograph: bool = True,
    name: str | None = None,
    memory: Memory | str | None = None,
    max_depth: int = 10_000,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a Python function, written for one example, a program that runs for many.

    Calling it equals calling the function. `f.map` runs it for many instances at once. It also
    decorates methods, of `nn.Module` and others.

    Arguments:
        fn: the function; left out when the decorator is used with options.
        autograph: whether `if`, `while`, `for`, `and`, `or`, `not` on traced values become control
            flow of the program, here and in the functions that it calls.
        name: the name in programs and errors; that of `fn` otherwise.
        memory: what becomes of the values that backward needs, for calls outside of any
            `ps.memory` scope: a policy by its name, or `ps.memory(...)`.
        max_depth: how many calls may be inside each other in a call of this function; one more
            is a `RecursionLimitError`.

    Gradients flow as through the Python function.
    """
    check_depth(max_depth)
    options: dict[str, Any] = {
        "autograph": autograph,
        "name": name,
        "memory": policy_of(memory),
        "max_depth": max_depth,
    }
    if fn is None:
        return lambda decorated: Function(decorated, options)
    return Function(fn, options)
