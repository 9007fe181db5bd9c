"""`if` on a traced value: both branches are traced, and the variables that they assign are joined.

What both branches leave as it was stays what it is. Of the rest, only what is read later leaves the
branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import (
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    unflatten,
)
from penstock.capture.active import active_tracer
from penstock.capture.converted.decisions import as_bool, as_predicate, is_open, not_
from penstock.capture.converted.effects import refuse_in_try
from penstock.capture.converted.lists import TracedList, UnknownElements
from penstock.capture.converted.placeholders import placeholder
from penstock.capture.converted.undefined import Undefined, in_one_branch, used_up
from penstock.capture.converted.variables import Values, Variables
from penstock.capture.indexing import stored_as_sequence
from penstock.capture.leaf_types import LeafType, StaticLeaf, join, leaf_type, wrap_leaves
from penstock.capture.leaves import STATIC_TYPES
from penstock.capture.location import user_place
from penstock.capture.recording import record
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.refusals import describe
from penstock.capture.tensor_array import TensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.type_rules import is_control_type
from penstock.errors import BranchTypeError, report
from penstock.ir.program import Body, Branch
from penstock.ir.types import TensorType, Type

if TYPE_CHECKING:
    from penstock.capture.scopes import Scope
    from penstock.capture.tracer import Tracer

Block = Callable[[], Any]

#: What the program is told that the value of an `if` is called.
_RESULT = "the value"


def if_stmt(
    test: Any, then: Block, orelse: Block, get: Any, set_: Any, facts: tuple[tuple[str, str], ...]
) -> None:
    """`if test: then() else: orelse()`, for what the blocks do to variables."""
    if _is_decided(test, then, orelse) is not None:
        return
    tracer = active_tracer()
    assert tracer is not None
    refuse_in_try("`if`")
    pred = as_predicate(tracer, test, "if: the condition")
    variables = Variables(get, set_, facts)
    before = variables.prepare(tracer)

    def run(block: Block) -> Values:
        variables.enter(tracer, before)
        block()
        return variables.values()

    outcomes = _trace(tracer, "if", {"else": lambda: run(orelse), "if": lambda: run(then)})
    variables.assign(before)
    names = variables.marked("l")
    after = _join(tracer, "if", pred, outcomes, names, variables.marked("r"))
    dropped = {name: used_up(name) for name in before if name not in after}
    unchanged = {
        name: before[name]
        for name in dropped
        if all(item.values is None or item.values[name] is before[name] for item in outcomes)
    }
    variables.assign({**dropped, **unchanged, **after})


def if_return(
    test: Any, then: Block, orelse: Block, get: Any, set_: Any, facts: tuple[tuple[str, str], ...]
) -> Any:
    """`return then() if test else orelse()`, where the blocks may assign variables too."""
    decided = _is_decided(test, then, orelse)
    if decided is not None:
        return decided[0]
    tracer = active_tracer()
    assert tracer is not None
    refuse_in_try("`if`")
    variables = Variables(get, set_, facts)
    before = variables.prepare(tracer)
    pred = as_predicate(tracer, test, "if: the condition")

    def run(block: Block) -> Any:
        variables.enter(tracer, before)
        return block()

    value = choose(tracer, pred, lambda: run(then), lambda: run(orelse), what="if")
    variables.assign(before)
    return value


def if_exp(test: Any, then: Block, orelse: Block) -> Any:
    """`then() if test else orelse()`."""
    decided = _is_decided(test, then, orelse)
    if decided is not None:
        return decided[0]
    tracer = active_tracer()
    assert tracer is not None
    refuse_in_try("`if`")
    pred = as_predicate(tracer, test, "if: the condition")
    return choose(tracer, pred, then, orelse, what="if")


def _is_decided(test: Any, then: Block, orelse: Block) -> tuple[Any] | None:
    """What the block that Python chooses returns, in a tuple; None where a run has to choose."""
    tracer = active_tracer()
    if tracer is None:
        return (then() if test else orelse(),)
    if is_open(test):
        return None
    chosen = bool(test)
    with tracer.scope.decided_branch(int(chosen)):
        return (then() if chosen else orelse(),)


def choose(tracer: Tracer, pred: TracedTensor, then: Block, orelse: Block, *, what: str) -> Any:
    """The value of one of two functions."""
    functions = {
        "else": lambda: {_RESULT: orelse()},
        "if": lambda: {_RESULT: then()},
    }
    outcomes = _trace(tracer, what, functions)
    return _join(tracer, what, pred, outcomes, [_RESULT], [])[_RESULT]


@dataclass(slots=True)
class _Outcome:
    """What one branch left behind."""

    name: str
    scope: Scope
    #: None where the branch was left.
    values: Any


def _trace(tracer: Tracer, what: str, functions: dict[str, Callable[[], Values]]) -> list[_Outcome]:
    """What each branch does; one that needs an unfinished recursion has no values."""
    outcomes: list[_Outcome] = []
    open_ends: list[UnresolvedRecursion | UnknownElements] = []
    for name, function in functions.items():
        with tracer.nested_scope() as scope:
            try:
                outcomes.append(_Outcome(f"{name} branch", scope, function()))
            except (UnresolvedRecursion, UnknownElements) as error:
                open_ends.append(error)
                outcomes.append(_Outcome(f"{name} branch", scope, None))
    if len(open_ends) == len(functions):
        raise open_ends[0]
    for left in open_ends:
        if isinstance(left, UnresolvedRecursion):
            tracer.signatures.missing.add(left.record)
    return outcomes


def _join(
    tracer: Tracer,
    what: str,
    pred: TracedTensor,
    outcomes: list[_Outcome],
    names: Sequence[str],
    returned: Sequence[str],
) -> Values:
    """The variables after the branches."""
    resolved = [item for item in outcomes if item.values is not None]
    joined: list[_Joined] = []
    after: Values = {}
    for name in names:
        values = [item.values[name] for item in resolved]
        if all(value is values[0] for value in values) and _is_outside(tracer, values[0]):
            after[name] = values[0]
            continue
        if [type(value) for value in values] == [bool, bool]:
            after[name] = as_bool(tracer, pred, what) if values[1] else not_(pred)
            continue
        missing = [item.name for item in resolved if isinstance(item.values[name], Undefined)]
        if missing and (name not in returned or len(missing) == len(resolved)):
            present = [item.name for item in resolved if item.name not in missing]
            after[name] = in_one_branch(name, present, missing)
            continue
        joined.append(_Joined(tracer, what, name, resolved))
    types = [leaf.type for item in joined for leaf in item.types if isinstance(leaf, LeafType)]
    bodies = []
    for outcome in outcomes:
        if outcome.values is None:
            bodies.append(Body((), (), ()))
            continue
        number = next(n for n, item in enumerate(resolved) if item is outcome)
        bodies.append(outcome.scope.body([v for item in joined for v in item.outputs[number]]))
    if not joined:
        return after
    outputs = iter(tracer.emit(Branch(tuple(bodies), True), (pred,), types))
    for item in joined:
        count = sum(isinstance(leaf, LeafType) for leaf in item.types)
        mine = [next(outputs) for _ in range(count)]
        after[item.name] = item.rebuilt(mine)
    return after


class _Joined:
    """One variable that differs between the branches."""

    def __init__(self, tracer: Tracer, what: str, name: str, outcomes: list[_Outcome]) -> None:
        self._tracer, self._what, self.name = tracer, what, name
        self._outcomes = outcomes
        values = self._alike([item.values[name] for item in outcomes])
        known = [value for value in values if not isinstance(value, Undefined)]
        self._first = known[0]
        leaves, self.structure = flatten(self._first)
        self._count = len(leaves)
        per_branch = [self._leaves(value, item) for value, item in zip(values, outcomes)]
        self.types = self._join_types(per_branch)
        #: For each branch the program values of the traced leaves.
        self.outputs = [
            self._read(item, found) for item, found in zip(outcomes, per_branch, strict=True)
        ]

    def rebuilt(self, values: list[Any]) -> Any:
        """The variable after the branches."""
        return unflatten(self.structure, wrap_leaves(self._tracer, values, self.types))

    def _alike(self, values: list[Any]) -> list[Any]:
        """Lists of which some may grow are traced ones in all branches."""
        if not any(isinstance(value, TracedList) for value in values):
            return values
        tracer, made = self._tracer, list(values)
        for number, (value, item) in enumerate(zip(values, self._outcomes, strict=True)):
            if type(value) is list:
                with tracer.reopened(item.scope):
                    made[number] = TracedList.of(tracer, value, self.name)
        known = [v for v in made if isinstance(v, TracedList) and v.structure is not None]
        holes = any(v.has_holes for v in made if isinstance(v, TracedList))
        for value, item in zip(made, self._outcomes, strict=True):
            if isinstance(value, TracedList) and known:
                with tracer.reopened(item.scope):
                    value.given_as(known[0])
                value.has_holes = holes
        return made

    def _leaves(self, value: Any, outcome: _Outcome) -> list[Any]:
        """The leaves of a branch's value, traced inside that branch; None for placeholders."""
        if isinstance(value, Undefined):
            return []
        try:
            leaves = flatten_like(self.structure, value)
        except StructureMismatchError:
            raise self._clash(describe(self._first), describe(value), outcome, "") from None
        if flatten(value)[1] != self.structure:
            leaves = flatten_like(self.structure, value)
        with self._tracer.reopened(outcome.scope):
            return [self._leaf(leaf) for leaf in leaves]

    def _leaf(self, leaf: Any) -> Any:
        is_value = isinstance(leaf, bool | int | float | torch.Tensor | TensorArray)
        if is_value and not isinstance(leaf, STATIC_TYPES):
            return self._tracer.leaf(leaf)
        return leaf

    def _join_types(self, per_branch: list[list[Any]]) -> list[LeafType | StaticLeaf]:
        joined: list[Any] = []
        for number in range(self._count):
            found = [
                (leaf_type(leaves[number]), item)
                for leaves, item in zip(per_branch, self._outcomes, strict=True)
                if leaves
            ]
            known = found[0][0]
            for other, item in found[1:]:
                both = join(self._tracer, known, other) or _away(known, other)
                if both is None:
                    path = leaf_paths(self._first, self.name)[number]
                    raise self._clash(str(known), str(other), item, path)
                known = both
            joined.append(known)
        return joined

    def _read(self, outcome: _Outcome, leaves: list[Any]) -> list[Any]:
        tracer = self._tracer
        with tracer.reopened(outcome.scope):
            if not leaves:
                leaves = [placeholder(tracer, leaf) for leaf in self.types]
            return [
                tracer.read(_stored_as(tracer, leaf, type_.type))
                for leaf, type_ in zip(leaves, self.types, strict=True)
                if isinstance(type_, LeafType)
            ]

    def _clash(self, left: str, right: str, other: _Outcome, path: str) -> BranchTypeError:
        first = next(item for item in self._outcomes if item is not other)
        shown = path or self.name
        subject = shown if shown.startswith(_RESULT) else f"the variable {shown}"
        todo = f"Make the {other.name} give {left}, or change the {first.name}."
        if shown.startswith(_RESULT) and "None" in (left, right):
            todo = "Return a value on every path, or on none."
        return BranchTypeError(
            report(
                f"{self._what}: both branches must give {subject} the same type.",
                where=user_place(),
                facts=[(first.name, f"{shown}   {left}"), (other.name, f"{shown}   {right}")],
                todo=todo,
            )
        )


def _away(left: Any, right: Any) -> LeafType | None:
    """Of numbers and truth values that differ in their devices alone: the type that is not on the
    host. What is on the host follows it, as in calls.
    """
    types = [leaf.type for leaf in (left, right) if isinstance(leaf, LeafType)]
    kinds = [kind for kind in types if isinstance(kind, TensorType) and is_control_type(kind)]
    away = [kind for kind in kinds if kind.device != "cpu"]
    is_one = len(kinds) == 2 and len(away) == 1 and kinds[0].dtype == kinds[1].dtype
    return (left if left.type is away[0] else right) if is_one else None


def _stored_as(tracer: Tracer, leaf: Any, type_: Type) -> Any:
    """A leaf as the other branch gives it: as a sequence, on another device."""
    if isinstance(type_, TensorType) and type_.device != "cpu" and _is_on_host(leaf):
        return record(tracer, torch.Tensor.to, (leaf, torch.device(type_.device)), {})
    if isinstance(type_, TensorType) and type_.is_sequence and isinstance(leaf, TracedTensor):
        own = leaf.traced.value.type
        if isinstance(own, TensorType) and not own.is_sequence:
            return stored_as_sequence(tracer, leaf)
    return leaf


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, TracedTensor) and leaf.traced.fakes[0].device.type == "cpu"


def _is_outside(tracer: Tracer, value: Any) -> bool:
    """Whether a value that all branches have is there without them."""
    for leaf in flatten(value)[0]:
        if isinstance(leaf, TracedTensor) and not tracer.scope.sees(leaf.traced.scope):
            return False
        if isinstance(leaf, TensorArray) and not tracer.scope.sees(leaf.scope):  # type: ignore[attr-defined]
            return False
    return True
