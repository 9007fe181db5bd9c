"""Loops in a trace: condition and body become bodies over the carried values.

The carried types are found by tracing: a dynamic dimension that an iteration changes gets a symbol
of its own, an array learns its element type, and a number on the host follows what the body returns
to its device, until nothing changes. Any other change of type is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import (
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    unflatten,
)
from penstock.capture.branches import is_traced, with_sequences
from penstock.capture.following import can_follow, placed
from penstock.capture.leaf_types import LeafType, leaf_type, wrap_leaf
from penstock.capture.leaves import as_values
from penstock.capture.location import user_line
from penstock.capture.predicates import predicate
from penstock.capture.recording import record
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.refusals import describe
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.type_rules import join_types
from penstock.errors import InternalError, LoopTypeError, report
from penstock.ir.program import Body, Loop
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

#: More rounds than carried dimensions and arrays can change.
_ROUNDS = 100


@dataclass
class State:
    """The nested value that a loop carries, and its error texts."""

    initial: Any
    loop: str
    function: str
    #: Whether the items of the state are separate parameters.
    is_spread: bool
    names: list[str]
    leaves: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.initial = as_values(self.initial, f"{self.loop}: the carried state", self.names[0])
        self.leaves, self._structure = flatten(self.initial)

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The state with these leaves as arguments of the loop's functions."""
        value = unflatten(self._structure, leaves)
        return tuple(value) if self.is_spread else (value,)

    def value(self, leaves: Sequence[Any]) -> Any:
        """The state with these leaves, in the form of the initial one."""
        return unflatten(self._structure, leaves)

    def returned_leaves(self, returned: Any) -> list[Any]:
        """The leaves of what the loop's function returned, in the order of the state's."""
        if self.is_spread and type(returned) in (tuple, list):
            returned = type(self.initial)(returned)
        returned = as_values(returned, f"{self.loop}: what {self.function} returns", "returned")
        try:
            return flatten_like(self._structure, returned)
        except StructureMismatchError:
            raise self.error(describe(self.initial), describe(returned)) from None

    def error(self, expected: str, returned: str, number: int | None = None) -> LoopTypeError:
        """The error for a clash of types at leaf `number`, or of structures."""
        path = "" if number is None else self._paths()[number]
        shown = f"{path}   " if path else ""
        wanted = f"{expected} for {path}" if path else expected
        return LoopTypeError(
            report(
                f"{self.loop}: {self.function} must return the same types it receives.",
                where=user_line(),
                facts=[
                    ("carried input", f"{shown}{expected}"),
                    ("returned value", f"{shown}{returned}"),
                ],
                todo=f"Make {self.function} return {wanted}, or change the initial value.",
            )
        )

    def _paths(self) -> list[str]:
        if not self.is_spread:
            return leaf_paths(self.initial, self.names[0])
        named = zip(self.initial, self.names, strict=True)
        return [path for value, name in named for path in leaf_paths(value, name)]


def trace_while_loop(
    tracer: Tracer,
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried: Any,
    maximum_iterations: Any,
    parallel_iterations: int | None,
) -> Any:
    """`ps.while_loop`."""
    is_spread = type(carried) in (tuple, list)
    names = parameter_names(body_fn, len(carried) if is_spread else 1)
    state = State(carried, "while_loop", "body_fn", is_spread, names)
    limit = maximum_iterations if isinstance(maximum_iterations, torch.Tensor) else None
    count = len(state.leaves)

    def condition(leaves: Sequence[Any]) -> Any:
        goes_on = cond_fn(*state.arguments(leaves[:count]))
        return goes_on if limit is None else _both(tracer, leaves[count], limit, goes_on)

    def body(leaves: Sequence[Any]) -> list[Any]:
        returned = state.returned_leaves(body_fn(*state.arguments(leaves[:count])))
        counted = (
            [] if limit is None else [record(tracer, torch.Tensor.add, (leaves[count], 1), {})]
        )
        return [*returned, *counted]

    initial = [*state.leaves, *([] if limit is None else [tracer.tensor(0)])]
    bound = None if limit is not None or maximum_iterations is None else int(maximum_iterations)
    loop = LoopTrace(tracer, state, condition, body, bound, parallel_iterations)
    return state.value(loop.trace(initial)[:count])


def _both(tracer: Tracer, counter: Any, limit: Any, goes_on: Any) -> Any:
    """counter < limit, and the condition."""
    below = record(tracer, torch.Tensor.lt, (counter, tracer.tensor(limit)), {})
    holds = predicate(tracer, goes_on, "while_loop: what cond_fn returns")
    if holds.traced.fakes[0].dtype is not torch.bool:
        holds = record(tracer, torch.Tensor.ne, (holds, 0), {})
    return record(tracer, torch.Tensor.logical_and, (below, holds), {})


@dataclass
class LoopTrace:
    """One loop on flat leaves."""

    tracer: Tracer
    state: State
    condition: Callable[[Sequence[Any]], Any]
    body: Callable[[Sequence[Any]], list[Any]]
    maximum_iterations: int | None = None
    parallel_iterations: int | None = None
    #: Dimensions that already have a symbol of their own, as (leaf, dimension).
    _widened: set[tuple[int, int]] = field(default_factory=set)

    def trace(self, initial: Sequence[Any]) -> list[Any]:
        """The leaves after the loop."""
        tracer = self.tracer
        leaves = [tracer.leaf(leaf) for leaf in initial]
        carried = {n: leaf for n, leaf in enumerate(leaves) if is_traced(leaf)}
        types: dict[int, Any] = {n: leaf_type(leaf) for n, leaf in carried.items()}
        for _ in range(_ROUNDS):
            condition, body, found = self._round(leaves, types)
            if found == types:
                break
            types = found
        else:
            raise InternalError(f"{self.state.loop}: the carried types do not settle")
        carried = {n: placed(tracer, leaf, types[n].type) for n, leaf in carried.items()}
        loop = Loop(condition, body, self.maximum_iterations, self.parallel_iterations)
        results = {n: self._result_type(n, type_) for n, type_ in types.items()}
        outputs = tracer.emit(loop, list(carried.values()), [r.type for r in results.values()])
        for (number, type_), output in zip(results.items(), outputs, strict=True):
            leaves[number] = wrap_leaf(tracer, output, type_)
        return leaves

    def _round(
        self, leaves: Sequence[Any], types: dict[int, Any]
    ) -> tuple[Body, Body, dict[int, Any]]:
        """Both bodies for these carried types, and the types that the next iteration needs."""
        tracer = self.tracer
        with tracer.nested_scope() as scope:
            inputs = self._inputs(leaves, types)
            what = f"{self.state.loop}: what cond_fn returns"
            holds = predicate(tracer, self.condition(inputs), what)
            condition = scope.body([tracer.read(holds)])
        with tracer.nested_scope() as scope:
            inputs = self._inputs(leaves, types)
            try:
                returned = [tracer.leaf(leaf) for leaf in self.body(inputs)]
            except UnresolvedRecursion as error:
                tracer.signatures.missing.add(error.record)
                returned = list(inputs)
            for number, leaf in types.items():
                returned[number] = placed(tracer, returned[number], leaf.type)
            found = {n: self._next_type(n, type_, returned[n]) for n, type_ in types.items()}
            self._check_static(types, leaves, returned)
            body = scope.body([tracer.read(returned[number]) for number in types])
        body = with_sequences(tracer, body, [leaf.type for leaf in found.values()])
        return condition, body, found

    def _inputs(self, leaves: Sequence[Any], types: dict[int, Any]) -> list[Any]:
        inputs = list(leaves)
        for number, leaf in types.items():
            facts: dict[str, Any] = {}
            if isinstance(leaf.type, TensorType):
                facts["is_control"] = leaf.is_control
                facts["origins"] = self._origins(leaves[number], leaf.type)
            inputs[number] = self.tracer.body_input(leaf.type, length=leaf.length, **facts)
        return inputs

    def _origins(self, initial: TracedTensor, type_: TensorType) -> Any:
        return tuple(
            origins if isinstance(size, int) else frozenset()
            for size, origins in zip(type_.shape, initial.traced.origins, strict=True)
        )

    def _next_type(self, number: int, carried: LeafType, returned: Any) -> LeafType:
        """The carried type that also covers what the body returned."""
        found = leaf_type(returned)
        expected, got = carried.type, found.type if isinstance(found, LeafType) else None
        if isinstance(expected, ArrayType) and isinstance(got, ArrayType):
            if expected.element is None or got.element == expected.element:
                joined = expected.element or got.element
                length = carried.length if carried.length == found.length else None  # type: ignore[union-attr]
                return LeafType(ArrayType(joined), length=length)
            both = join_types(self.tracer.worlds, expected, got)
            element = both.element if isinstance(both, ArrayType) else None
            if element is not None and element.is_dynamic:
                return replace(carried, type=ArrayType(self._settled(expected.element, element)))
        elif isinstance(expected, TensorType) and isinstance(got, TensorType):
            if can_follow(expected, got.device):
                expected = replace(expected, device=got.device)
            shape = self._next_shape(number, expected, got)
            if shape is not None:
                is_control = carried.is_control and found.is_control  # type: ignore[union-attr]
                return LeafType(replace(expected, shape=shape), is_control)
        raise self.state.error(str(expected), str(found), number)

    def _next_shape(self, number: int, expected: TensorType, got: TensorType) -> Any:
        same = (expected.dtype, expected.device, len(expected.shape))
        if same != (got.dtype, got.device, len(got.shape)):
            return None
        shape = []
        for dimension, (old, new) in enumerate(zip(expected.shape, got.shape, strict=True)):
            if old == new or (number, dimension) in self._widened:
                shape.append(old)
            elif isinstance(old, str):
                self._widened.add((number, dimension))
                shape.append(self.tracer.worlds.fresh_symbol())
            else:
                return None
        return tuple(shape)

    @staticmethod
    def _settled(old: TensorType, new: TensorType) -> TensorType:
        """Element types that differ in dynamic dimensions only stay as they are."""
        shape = tuple(
            one if isinstance(one, str) else other
            for one, other in zip(old.shape, new.shape, strict=True)
        )
        return replace(new, shape=shape)

    def _result_type(self, number: int, leaf: LeafType) -> LeafType:
        if not isinstance(leaf.type, TensorType):
            return leaf
        shape = tuple(
            self.tracer.worlds.fresh_symbol() if (number, dimension) in self._widened else size
            for dimension, size in enumerate(leaf.type.shape)
        )
        return replace(leaf, type=replace(leaf.type, shape=shape))

    def _check_static(
        self, types: dict[int, Any], leaves: Sequence[Any], returned: Sequence[Any]
    ) -> None:
        for number, leaf in enumerate(leaves):
            if number not in types and (is_traced(returned[number]) or returned[number] != leaf):
                raise self.state.error(describe(leaf), describe(returned[number]), number)


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names that `function` gives its first `count` arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "carried_inputs")
    named = [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(count)]
    return named or [rest]
