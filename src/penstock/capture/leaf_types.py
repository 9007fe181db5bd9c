"""The type of one leaf as control flow compares it: its program type and what else a trace relies
on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.type_rules import join_types
from penstock.capture.worlds import SizePair
from penstock.ir.program import Value
from penstock.ir.types import TensorType, Type

if TYPE_CHECKING:
    from penstock.capture.tracer import Traced, Tracer


@dataclass(frozen=True, slots=True)
class LeafType:
    """What is known of a value wherever it comes from."""

    type: Type
    is_control: bool = False
    #: The length of an array in both worlds, where it is known.
    length: SizePair | None = None

    def __str__(self) -> str:
        return str(self.type)


@dataclass(frozen=True, slots=True)
class StaticLeaf:
    """A value that is the same in every run."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


def leaf_type(leaf: Any) -> LeafType | StaticLeaf:
    """The type of a traced leaf."""
    if isinstance(leaf, TracedTensor):
        return LeafType(leaf.traced.value.type, leaf.traced.is_control)
    if isinstance(leaf, TracedTensorArray):
        return LeafType(leaf.type, length=leaf.length)
    return StaticLeaf(leaf)


def join(
    tracer: Tracer, left: LeafType | StaticLeaf, right: LeafType | StaticLeaf
) -> LeafType | StaticLeaf | None:
    """What is known where a value may come from either side; None where the types clash."""
    if isinstance(left, StaticLeaf) or isinstance(right, StaticLeaf):
        return left if left == right else None
    type_ = join_types(tracer.worlds, left.type, right.type)
    if type_ is None:
        return None
    length = left.length if left.length == right.length else None
    return LeafType(type_, left.is_control and right.is_control, length)


def wrap_leaf(tracer: Tracer, value: Value, leaf: LeafType) -> Traced:
    """The object for a value of the current body."""
    if isinstance(leaf.type, TensorType):
        return tracer.wrap(value, is_control=leaf.is_control)
    return TracedTensorArray(tracer, value, tracer.scope, leaf.length)


def wrap_leaves(
    tracer: Tracer, values: Sequence[Value], leaves: Sequence[LeafType | StaticLeaf]
) -> list[Any]:
    """The objects for all leaves, static ones included; `values` has none for those."""
    remaining = iter(values)
    return [
        leaf.value if isinstance(leaf, StaticLeaf) else wrap_leaf(tracer, next(remaining), leaf)
        for leaf in leaves
    ]
