"""A loop of the program over the variables of a `while` or `for`.

The carried variables are those that are read at its head or after it and have a value before it.
Their leaves are what the loop carries; a leaf that is no value (a module, a function) must stay the
same object. What the types before the loop do not tell (of a list that is still empty, of a value
that is returned from inside) is found by one iteration that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import (
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    unflatten,
)
from penstock.capture.converted.decisions import as_bool, as_predicate, is_open
from penstock.capture.converted.lists import TracedList, UnknownElements
from penstock.capture.converted.placeholders import placeholder
from penstock.capture.converted.undefined import Undefined, in_a_loop, used_up
from penstock.capture.converted.variables import Values, Variables
from penstock.capture.leaf_types import StaticLeaf, leaf_type
from penstock.capture.leaves import STATIC_TYPES
from penstock.capture.location import user_place
from penstock.capture.loops import LoopTrace
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.refusals import describe
from penstock.capture.tensor_array import TensorArray
from penstock.errors import LoopTypeError, report
from penstock.ir.program import Branch, Call, ForEach, Loop

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class TracedLoop:
    """One traced loop over variables; also the `state` that `LoopTrace` reports clashes to."""

    def __init__(self, tracer: Tracer, word: str, variables: Variables) -> None:
        self._tracer = tracer
        #: How the loop is called in errors.
        self.loop = word
        self._variables = variables
        self._before = variables.prepare(tracer)
        self._carried: list[str] = []
        self._structures: dict[str, Any] = {}
        #: For each carried variable its leaves; those that are no values stay as they are.
        self._leaves: dict[str, list[Any]] = {}
        self._extras = 0

    def reserve(self, length: Any) -> None:
        """Make room at once in lists that each iteration appends to; None for not known."""
        for name in self._variables.marked("o"):
            value = self._before[name]
            if isinstance(value, TracedList) and value.structure is None:
                value.capacity = length

    def trace(
        self,
        extra: list[Any],
        condition: Callable[[Sequence[Any]], Any],
        step: Callable[[Sequence[Any]], list[Any]],
    ) -> None:
        """Trace the loop and set the variables to what they are after it."""
        tracer = self._tracer
        self._extras = len(extra)
        initial = self._initial(extra, step)
        self._take_apart(initial)
        flat = [leaf for name in self._carried for leaf in self._values_of(name)]

        what = f"{self.loop}: the condition"
        is_rotated = self._branches(extra, flat, initial, condition)
        flags = []
        if is_rotated:
            self._begin(flat, initial)
            flags = [_as_flag(tracer, condition(extra), what)]
        self._extras += len(flags)

        def test(leaves: Sequence[Any]) -> Any:
            if is_rotated:
                return leaves[0]
            self._begin(leaves[len(extra) :], initial)
            return as_predicate(tracer, condition(leaves[: len(extra)]), what)

        def body(leaves: Sequence[Any]) -> list[Any]:
            leaves = leaves[len(flags) :]
            self._begin(leaves[len(extra) :], initial)
            self._variables.clear_flags()
            advanced = step(leaves[: len(extra)])
            collected = self._collect()
            again = [_as_flag(tracer, condition(advanced), what)] if is_rotated else []
            return [*again, *advanced, *collected]

        try:
            loop = LoopTrace(tracer, self, test, body)  # type: ignore[arg-type]
            results = loop.trace([*flags, *extra, *flat])
        finally:
            self._variables.assign(self._before)
        self._finish(results[self._extras :], initial)

    def _branches(
        self,
        extra: list[Any],
        flat: list[Any],
        initial: Values,
        condition: Callable[[Sequence[Any]], Any],
    ) -> bool:
        """Whether the condition has control flow of its own; it is then computed by the body."""
        tracer = self._tracer
        with tracer.nested_scope() as scope:
            leaves = [self._input(leaf) for leaf in (*extra, *flat)]
            self._begin(leaves[len(extra) :], initial)
            condition(leaves[: len(extra)])
            kinds = (Branch, Loop, Call, ForEach)
            found = any(isinstance(node.operation, kinds) for node in scope.nodes)
        self._variables.assign(self._before)
        return found

    def _input(self, leaf: Any) -> Any:
        """A stand-in for a carried leaf."""
        known = leaf_type(self._tracer.leaf(leaf))
        if isinstance(known, StaticLeaf):
            return leaf
        return self._tracer.body_input(known.type, is_control=known.is_control)

    # The state before the loop

    def _initial(self, extra: list[Any], step: Callable[[Sequence[Any]], list[Any]]) -> Values:
        """The carried values before the loop; what their types depend on is found by a trial."""
        names = self._variables.marked("l")
        returned = self._variables.marked("r")
        values = {name: self._before[name] for name in names}
        unknown = [
            name
            for name, value in values.items()
            if (isinstance(value, Undefined) and name in returned)
            or (isinstance(value, TracedList) and value.structure is None)
        ]
        if unknown:
            found = self._trial(extra, step)
            for name in unknown:
                values[name] = self._learned(name, values[name], found.get(name))
        return {name: value for name, value in values.items() if not isinstance(value, Undefined)}

    def _trial(self, extra: list[Any], step: Callable[[Sequence[Any]], list[Any]]) -> Values:
        """What the variables are after one iteration; nothing of it stays in the program."""
        tracer = self._tracer
        tracer.trials += 1
        missing = set(tracer.signatures.missing)
        try:
            with tracer.nested_scope():
                self._variables.enter(tracer, self._as_inputs())
                with suppress(UnresolvedRecursion, UnknownElements):
                    step(extra)
                found = self._variables.values()
                return {name: _types_of(tracer, value) for name, value in found.items()}
        finally:
            tracer.trials -= 1
            tracer.signatures.missing = missing
            self._variables.assign(self._before)

    def _as_inputs(self) -> Values:
        """The values before the loop, numbers as the tensors that they will be."""
        return {
            name: self._input(value) if type(value) in (bool, int, float) else value
            for name, value in self._before.items()
        }

    def _learned(self, name: str, value: Any, found: Any) -> Any:
        if found is None:
            return value
        kind, structure, types = found
        if isinstance(value, TracedList):
            return value.copy().given(structure, types) if kind == "list" and structure else value
        if kind != "value":
            return value
        return unflatten(structure, [placeholder(self._tracer, leaf) for leaf in types])

    def _take_apart(self, initial: Values) -> None:
        self._carried = list(initial)
        for name, value in initial.items():
            self._leaves[name], self._structures[name] = flatten(value)

    def _values_of(self, name: str) -> list[Any]:
        return [leaf for leaf in self._leaves[name] if _is_value(leaf)]

    # One iteration

    def _begin(self, leaves: Sequence[Any], initial: Values) -> None:
        """Set the variables for one iteration."""
        tracer = self._tracer
        values = {
            name: initial.get(name, _at_start(name, value)) for name, value in self._before.items()
        }
        values.update(self._rebuilt(leaves))
        self._variables.enter(tracer, values)

    def _rebuilt(self, leaves: Sequence[Any]) -> Values:
        remaining = iter(leaves)
        made = {}
        for name in self._carried:
            mine = [next(remaining) if _is_value(leaf) else leaf for leaf in self._leaves[name]]
            made[name] = unflatten(self._structures[name], mine)
        return made

    def _collect(self) -> list[Any]:
        """The leaves of the carried variables after an iteration."""
        values = self._variables.values()
        return [leaf for name in self._carried for leaf in self._collected(name, values[name])]

    def _collected(self, name: str, value: Any) -> list[Any]:
        before = unflatten(self._structures[name], self._leaves[name])
        if isinstance(value, Undefined):
            raise self._clash(name, describe(before), "no value")
        if isinstance(value, TracedList) and isinstance(before, TracedList):
            value = self._same_list(name, before, value)
        try:
            leaves = flatten_like(self._structures[name], value)
        except StructureMismatchError:
            raise self._clash(name, describe(before), describe(value)) from None
        paths = leaf_paths(before, name)
        found = []
        for path, old, new in zip(paths, self._leaves[name], leaves, strict=True):
            if _is_value(old):
                if not _is_value(new):
                    raise self._clash(path, describe(old), describe(new))
                found.append(new)
            elif old is not new:
                raise self._clash(path, describe(old), describe(new))
        return found

    def _same_list(self, name: str, before: TracedList, after: TracedList) -> TracedList:
        after = after.copy().given_as(before)
        if after.has_holes:
            before.has_holes = True
            self._structures[name] = flatten(before)[1]
        after.has_holes = before.has_holes
        return after

    # After the loop

    def _finish(self, leaves: Sequence[Any], initial: Values) -> None:
        after = self._rebuilt(leaves)
        live = self._variables.marked("l")
        for name, value in self._before.items():
            if name not in after:
                is_new = isinstance(value, Undefined) and not value.facts
                after[name] = in_a_loop(name) if name in live and is_new else used_up(name)
        self._variables.assign(after)

    # Errors

    def error(self, expected: str, returned: str, number: int | None = None) -> LoopTypeError:
        """The error for a clash of types at leaf `number`."""
        paths = ["the loop's counter"] * self._extras
        for name in self._carried:
            value = unflatten(self._structures[name], self._leaves[name])
            pairs = zip(leaf_paths(value, name), self._leaves[name], strict=True)
            paths += [path for path, leaf in pairs if _is_value(leaf)]
        return self._clash(paths[number or 0], expected, returned)

    def _clash(self, path: str, before: str, after: str) -> LoopTypeError:
        return LoopTypeError(
            report(
                f"{self.loop}: a traced loop must keep the types of its variables.",
                where=user_place(),
                facts=[
                    ("before the loop", f"{path}   {before}"),
                    ("after an iteration", f"{path}   {after}"),
                ],
                todo=f"Give {path} the type {after} before the loop, or keep {before} in it.",
            )
        )


def _as_flag(tracer: Tracer, holds: Any, what: str) -> Any:
    """A condition as a traced truth value."""
    return as_bool(tracer, holds, what) if is_open(holds) else tracer.tensor(bool(holds))


def _at_start(name: str, value: Any) -> Any:
    """What a variable that is not carried holds when an iteration begins."""
    return in_a_loop(name) if isinstance(value, Undefined) else value


def _is_value(leaf: Any) -> bool:
    """Whether a leaf is carried; anything else must stay what it is."""
    kinds = (bool, int, float, torch.Tensor, TensorArray, *STATIC_TYPES)
    return isinstance(leaf, kinds)


def _types_of(tracer: Tracer, value: Any) -> Any:
    """What a trial shows of a variable."""
    if isinstance(value, TracedList):
        return "list", value.structure, [array.type.element for array in value.arrays]
    if isinstance(value, Undefined):
        return None
    leaves, structure = flatten(value)
    if not all(_is_value(leaf) for leaf in leaves):
        return None
    return "value", structure, [leaf_type(tracer.leaf(leaf)) for leaf in leaves]
