"""What becomes of one variable that the branches of an `if` leave different.

Its structure is the same in all branches, and each of its leaves has one type that all can give;
what has no value in some branch is a placeholder there.
"""

from __future__ import annotations

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
from penstock.capture.converted.lists import TracedList
from penstock.capture.converted.placeholders import placeholder
from penstock.capture.converted.undefined import Undefined
from penstock.capture.following import join_following, placed
from penstock.capture.indexing import stored_as_sequence
from penstock.capture.leaf_types import LeafType, StaticLeaf, leaf_type, wrap_leaves
from penstock.capture.leaves import STATIC_TYPES
from penstock.capture.location import user_place
from penstock.capture.refusals import describe
from penstock.capture.tensor_array import TensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.errors import BranchTypeError, report
from penstock.ir.types import TensorType, Type

if TYPE_CHECKING:
    from penstock.capture.scopes import Scope
    from penstock.capture.tracer import Tracer

#: What the program is told that the value of an `if` is called.
RESULT = "the value"


@dataclass(slots=True)
class Outcome:
    """What one branch left behind."""

    name: str
    scope: Scope
    #: None where the branch was left.
    values: Any


class Joined:
    """One variable that differs between the branches."""

    def __init__(self, tracer: Tracer, what: str, name: str, outcomes: list[Outcome]) -> None:
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

    def _leaves(self, value: Any, outcome: Outcome) -> list[Any]:
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
                both = join_following(self._tracer, known, other)
                if both is None:
                    path = leaf_paths(self._first, self.name)[number]
                    raise self._clash(str(known), str(other), item, path)
                known = both
            joined.append(known)
        return joined

    def _read(self, outcome: Outcome, leaves: list[Any]) -> list[Any]:
        tracer = self._tracer
        with tracer.reopened(outcome.scope):
            if not leaves:
                leaves = [placeholder(tracer, leaf) for leaf in self.types]
            return [
                tracer.read(_stored_as(tracer, leaf, type_.type))
                for leaf, type_ in zip(leaves, self.types, strict=True)
                if isinstance(type_, LeafType)
            ]

    def _clash(self, left: str, right: str, other: Outcome, path: str) -> BranchTypeError:
        first = next(item for item in self._outcomes if item is not other)
        shown = path or self.name
        subject = shown if shown.startswith(RESULT) else f"the variable {shown}"
        todo = f"Make the {other.name} give {left}, or change the {first.name}."
        if shown.startswith(RESULT) and "None" in (left, right):
            todo = "Return a value on every path, or on none."
        return BranchTypeError(
            report(
                f"{self._what}: both branches must give {subject} the same type.",
                where=user_place(),
                facts=[(first.name, f"{shown}   {left}"), (other.name, f"{shown}   {right}")],
                todo=todo,
            )
        )


def _stored_as(tracer: Tracer, leaf: Any, type_: Type) -> Any:
    """A leaf as the other branch gives it: as a sequence, on another device."""
    leaf = placed(tracer, leaf, type_)
    if isinstance(type_, TensorType) and type_.is_sequence and isinstance(leaf, TracedTensor):
        own = leaf.traced.value.type
        if isinstance(own, TensorType) and not own.is_sequence:
            return stored_as_sequence(tracer, leaf)
    return leaf
