"""`ps.function` and `ps.map`: programs as callables.

A function is traced when it is first called with arguments of new types, and compiled; after that,
calls and maps only bind their arguments and run. Inside another trace a call is recorded; under
`set_eager` it is the plain Python call.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from os import PathLike
from typing import Any, overload

import torch
from torch import nn

from penstock.api.collate import CollatedBatch, as_columns, rows_of
from penstock.api.columns import (
    Batch,
    Collected,
    Spread,
    as_tensor,
    many_instances,
    one_instance,
)
from penstock.api.eager_code import GRANULARITIES, check_choice, map_eager
from penstock.api.guards import Guards
from penstock.api.instances import (
    common_count,
    naming_assertions,
    naming_instance,
    split_instances,
)
from penstock.api.markers import Shared
from penstock.api.memory import memory as Memory
from penstock.api.memory import policy_of
from penstock.api.outputs import check_form, in_form, in_form_of_values
from penstock.api.program_steps import record_program
from penstock.api.refusals import (
    check_depth,
    check_traceable,
    errors_need_a_list,
    not_a_function,
)
from penstock.api.traces import Entry, Traces
from penstock.autodiff.function import asks_for_gradients, run_with_gradients
from penstock.calls.structure import map_leaves
from penstock.capture import eager_keys
from penstock.capture.active import active_tracer, state
from penstock.capture.lazy.active import active_scope
from penstock.capture.lazy.scope import Scope
from penstock.capture.leaves import as_values
from penstock.capture.signatures import Callee
from penstock.capture.static import Static, is_static
from penstock.distributed.call import is_spread, run_placed
from penstock.errors import PenstockError
from penstock.ir.program import Program
from penstock.run.memory.policy import default_policy
from penstock.run.recording import note_split, profiling
from penstock.run.seeds import Seed
from penstock.run.shipped import ShippedPlan, shipped_plans

#: Where an object keeps the programs of its decorated methods.
_TRACES = "_penstock_traces"


class Function:
    """A Python function that runs as a program. Made by `ps.function`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: dict[str, Any],
        instance: Any = None,
        signature: inspect.Signature | None = None,
    ) -> None:
        check_traceable(fn)
        functools.update_wrapper(self, fn)
        self.__wrapped__: Callable[..., Any] = fn
        self._options = options
        self._instance = instance
        self._name = options["name"] or getattr(fn, "__name__", type(fn).__name__)
        bound = fn if instance is None else types.MethodType(fn, instance)
        identity = (id(fn), id(instance))
        signature = signature or inspect.signature(bound)
        self._callee = Callee(bound, self._name, identity, signature, options["autograph"])
        self._names = list(self._callee.signature.parameters)
        self._traces = Traces() if instance is None else _traces_of(instance, self._name)

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        if instance is None:
            return self
        return Function(self.__wrapped__, self._options, instance, self._bound_signature)

    @functools.cached_property
    def _bound_signature(self) -> inspect.Signature:
        """The signature of the method of an object: the same for all objects."""
        return inspect.signature(types.MethodType(self.__wrapped__, object()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for one instance."""
        tracer = active_tracer()
        if tracer is not None:
            return tracer.call(self._callee, args, kwargs)
        if state.eager:
            return self._call_eagerly(args, kwargs, Seed(), 0)
        scope = active_scope()
        if scope is not None:
            return self._call_recorded(scope, args, kwargs)
        batch = one_instance(*self._callee.bind(args, kwargs), self._names)
        entry = self._traces.find(self._callee, batch, self._guards())
        return entry.traced.rebuild(self._run(entry, batch, Seed())[0][1])

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
        if state.eager:
            return self._map_eagerly(as_columns(columns), out, shared)
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
        joined = self._run_joined(batch) if out == "stack" else None
        if joined is not None:
            return joined
        results = self._run_batch(batch)
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
        names = [*self._names, *(f"column {n}" for n in range(len(self._names), len(rows[0])))]
        columns = [
            Collected.of(list(column), names[number])
            for number, column in enumerate(zip(*rows, strict=True))
        ]
        if state.eager:
            return CollatedBatch(columns, len(rows), (), "eager code is not planned")
        batch = self._bind_columns(columns, shared, len(rows))
        return CollatedBatch(columns, len(rows), *self._plan_ahead(batch))

    def _plan_ahead(self, batch: Batch) -> tuple[list[ShippedPlan], str]:
        """The plans of a map, and why there are none for some instances."""
        plans, note = [], ""
        try:
            guards = self._guards()
            for _, part in split_instances(batch, _fixed_sizes):
                entry = self._find(part, guards)
                values = [column.values for column in part.inputs]
                captures = _captures(entry, part)
                executable = self._executable(entry)
                made = executable.plan_ahead(values, captures, part.count, part.numbers)
                if made is None:
                    note = "planned when it is run: not decided by inputs alone, or very long"
                else:
                    plans.append(made)
        except Exception as error:  # the map will raise it again, where the user can see it
            note = f"planned when it is run: {type(error).__name__} while planning"
        return plans, note

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program that a call with these arguments runs; `print` shows it."""
        return self._entry(args, kwargs).program

    def graph(self, *args: Any, **kwargs: Any) -> Any:
        """The graph of primitives that a call with these arguments runs."""
        return self._executable(self._entry(args, kwargs)).graph

    def schedule(self, *columns: Any, **shared: Any) -> Any:
        """What a map over these columns launches, in order."""
        batch = self._bind_columns(columns, shared, common_count(columns))
        entry = self._traces.find(self._callee, batch, self._guards())
        values = [column.values for column in batch.inputs]
        captures = _captures(entry, batch)
        return self._executable(entry).schedule(values, captures, batch.count, batch.numbers)

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
        return Function(
            self.__wrapped__, self._options, memo.get(id(self._instance), self._instance)
        )

    def _guards(self) -> dict[str, Any]:
        return Guards(self._callee.function).values()

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        batch = one_instance(*self._callee.bind(args, kwargs), self._names)
        return self._traces.find(self._callee, batch, self._guards())

    def _bind_columns(self, columns: Sequence[Any], shared: dict[str, Any], count: int) -> Batch:
        names = self._names
        spread = [
            column
            if isinstance(column, Shared | Static | Collected)
            else Spread(column, names[number] if number < len(names) else f"column {number}")
            for number, column in enumerate(columns)
        ]
        args, kwargs = self._callee.bind(tuple(spread), shared)
        return many_instances(args, kwargs, self._names, count)

    def map_returning_errors(self, columns: Sequence[Any], shared: dict[str, Any]) -> list[Any]:
        """`map`, with the exception of an instance that fails in its place."""
        columns = as_columns(columns)
        count = common_count(columns)
        if state.eager or not count:
            results: list[Any] = self._map_eagerly(columns, "list", shared, returns_errors=True)
            return results
        batch = self._bind_columns(columns, shared, count)
        return self._run_without_failures(batch, Seed())

    def _run_without_failures(self, batch: Batch, seed: Seed) -> list[Any]:
        """The outputs of all instances; those that fail are found by halving."""
        try:
            results = self._run_batch(batch, seed)
        except Exception as error:
            if batch.count == 1:
                return [error]
            half = batch.count // 2
            parts = (range(half), range(half, batch.count))
            found = [self._run_without_failures(batch.rows(part), seed) for part in parts]
            return [*found[0], *found[1]]
        return [entry.traced.rebuild(tensors) for entry, tensors in results]

    def _run_batch(
        self, batch: Batch, seed: Seed | None = None
    ) -> list[tuple[Entry, list[torch.Tensor]]]:
        """For each instance its program and its output tensors."""
        guards = self._guards()
        seed = seed or Seed()
        results: list[Any] = [None] * batch.count
        parts = split_instances(batch, _fixed_sizes)
        reason = "their shapes differ in more than the first dimension"
        note_split(self._name, batch.count, len(parts), reason)
        for rows, part in parts:
            for row, result in zip(rows, self._run_part(part, guards, seed), strict=True):
                results[row] = result
        return results

    def _run_part(
        self, part: Batch, guards: dict[str, Any], seed: Seed
    ) -> list[tuple[Entry, list[torch.Tensor]]]:
        """Run instances that differ in leading sizes only: together, else those of each size."""
        pinned = self._traces.pinned(part, guards)
        if not pinned:
            try:
                entry = self._find(part, guards)
            except (PenstockError, RuntimeError):
                pinned = self._traces.pin(part, guards)
                if not pinned:
                    raise
            else:
                return self._run(entry, part, seed)
        results: list[Any] = [None] * part.count
        groups = split_instances(part, lambda number, shape: shape)
        reason = "their sizes differ, and the function cannot be traced for all sizes at once"
        note_split(self._name, part.count, len(groups), reason)
        for rows, group in groups:
            entry = self._find(group, guards)
            for row, result in zip(rows, self._run(entry, group, seed), strict=True):
                results[row] = result
        return results

    def _find(self, batch: Batch, guards: dict[str, Any]) -> Entry:
        with naming_instance(batch.numbers[0] if batch.numbers else None, self._name):
            return self._traces.find(self._callee, batch, guards)

    def _run(
        self, entry: Entry, batch: Batch, seed: Seed
    ) -> list[tuple[Entry, list[torch.Tensor]]]:
        rows = self._run_columns(entry, batch, seed)
        return [(entry, [row[number] for row in rows]) for number in range(batch.count)]

    def _run_joined(self, batch: Batch) -> Any:
        """The stacked outputs, where one known program with outputs of one shape runs them all."""
        if len(list(split_instances(batch, _fixed_sizes))) != 1:
            return None
        guards = self._guards()
        if self._traces.pinned(batch, guards):
            return None
        entry = self._traces.known(batch, guards)
        if entry is None or not entry.has_one_shape:
            return None
        return entry.traced.rebuild(self._run_columns(entry, batch, Seed(), is_joined=True))

    def _run_columns(
        self, entry: Entry, batch: Batch, seed: Seed, *, is_joined: bool = False
    ) -> list[Any]:
        """Each output of the program: a list of rows, or one tensor of all rows."""
        values = [column.values for column in batch.inputs]
        captures = _captures(entry, batch)
        executable = self._executable(entry)
        with naming_assertions(entry.traced.assertions):
            if is_spread(executable):
                return run_placed(
                    executable,
                    values,
                    captures,
                    batch.count,
                    batch.numbers,
                    seed,
                    is_joined=is_joined,
                )
            if asks_for_gradients(values, captures):
                with default_policy(self._options["memory"]):
                    return run_with_gradients(
                        executable,
                        values,
                        captures,
                        batch.count,
                        batch.numbers,
                        seed,
                        is_joined=is_joined,
                    )
            columns = executable.run(values, captures, batch.count, batch.numbers, seed)
            return [column.stacked() if is_joined else column.rows() for column in columns]

    def _executable(self, entry: Entry) -> Any:
        if entry.executable is None:
            from penstock.run.engine import compile_program

            entry.executable = compile_program(entry.program, self._options["max_depth"])
        return entry.executable

    def _call_eagerly(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], seed: Seed, number: int
    ) -> Any:
        plain_args, plain_kwargs = map_leaves(_eager_leaf, self._callee.bind(args, kwargs))
        with eager_keys.instance(seed, number):
            returned = self._callee.function(*plain_args, **plain_kwargs)
        return as_values(returned, f"{self._name}: what the function returns", "result")

    def _call_recorded(self, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call in eager code that is recorded: one step, or as many as its own code makes."""
        bound = self._callee.bind(args, kwargs)
        plain_args, plain_kwargs = map_leaves(_eager_leaf, bound)
        as_program = functools.partial(self._record_program, scope, *bound)
        is_step, returned = scope.units.on_function(
            self.__wrapped__, self._instance, plain_args, plain_kwargs, as_program
        )
        if not is_step:
            returned = self._callee.function(*plain_args, **plain_kwargs)
        return as_values(returned, f"{self._name}: what the function returns", "result")

    def _record_program(self, scope: Scope, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Record a call of a program with control flow as one step, if it can be one."""
        own_args, own_kwargs = map_leaves(_own_leaf, (args, kwargs))
        batch = one_instance(own_args, own_kwargs, self._names)
        if self._traces.is_unrecorded(batch):
            return False, None
        find = functools.partial(self._traces.find, self._callee, batch, self._guards())
        try:
            is_step, returned = record_program(scope, batch, find, self._executable)
        except Exception:  # the function itself will raise it again
            is_step, returned = False, None
        if not is_step:
            self._traces.note_unrecorded(batch)
        return is_step, returned

    def _map_eagerly(
        self,
        columns: Sequence[Any],
        out: str,
        shared: dict[str, Any],
        *,
        returns_errors: bool = False,
    ) -> Any:
        count = common_count(columns)
        rows = [
            [c if isinstance(c, Shared | Static) else c[number] for c in columns]
            for number in range(count)
        ]
        results: list[Any] = []
        seed = Seed()
        for number, row in enumerate(rows):
            try:
                with naming_instance(number if count > 1 else None, self._name):
                    results.append(self._call_eagerly(tuple(row), shared, seed, number))
            except Exception as error:
                if not returns_errors:
                    raise
                results.append(error)
        return in_form_of_values(out, results)


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


def map_instances(
    fn: Any,
    *columns: Any,
    out: str = "list",
    granularity: str = "auto",
    on_error: str = "raise",
    **shared: Any,
) -> Any:
    """Run a function for many instances at once: a `ps.function`, or any eager PyTorch code.

    It equals::

        [fn(*row, **shared) for row in zip(*columns)]

    Arguments:
        fn: a `ps.function`, an `nn.Module`, or a Python function for one instance. Eager code runs
            unchanged: its torch calls are recorded and run batched, and where it reads a value
            (`.item()`, `if t > 0`) only that instance waits.
        columns: one per parameter; a list or tuple of values, one for each instance, or a tensor
            with the instances along its first dimension, or `ps.shared(x)`.
        out: "list", "stack" or "pad", as for `Function.map`.
        granularity: what eager code records as one step: every torch call ("op"), module calls
            ("module"), also methods that are proven to have no side effects ("auto"), or all that
            an instance does between two reads ("graph").
        on_error: "raise" an instance's exception, or "return" it in the instance's place.
        shared: arguments by name that are the same for all instances.

    Gradients flow as they would through the calls one by one.
    """
    target = fn.forward if isinstance(fn, nn.Module) else fn
    if not callable(fn):
        raise not_a_function(fn)
    check_form(out)
    check_choice("granularity", granularity, GRANULARITIES)
    check_choice("on_error", on_error, ("raise", "return"))
    if on_error == "return" and out != "list":
        raise errors_need_a_list(out)
    if isinstance(target, Function) and active_scope() is None:
        if on_error == "return":
            return target.map_returning_errors(columns, shared)
        return target.map(*columns, out=out, **shared)
    return map_eager(fn, columns, out, granularity, on_error, shared)


def _traces_of(instance: Any, name: str) -> Traces:
    """The programs of one decorated method of one object; they live and end with the object."""
    stored: dict[str, Traces] = instance.__dict__.setdefault(_TRACES, {})
    return stored.setdefault(name, Traces())


def _captures(entry: Entry, batch: Batch) -> list[torch.Tensor]:
    return [
        capture.fetch() if capture.shared is None else batch.shared[capture.shared].tensor
        for capture in entry.traced.captures
    ]


def _fixed_sizes(number: int, shape: tuple[int, ...]) -> Hashable:
    """What instances of one program must agree on: all but the leading size."""
    return len(shape), shape[1:]


def _own_leaf(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Shared) else leaf


def _eager_leaf(leaf: Any) -> Any:
    value = leaf.value if isinstance(leaf, Shared | Static) else leaf
    return value if isinstance(leaf, Static) or is_static(value) else as_tensor(value, "argument")
