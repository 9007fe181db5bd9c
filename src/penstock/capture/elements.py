"""The elements of tensors, arrays and nested values of these, side by side, in a trace.

A tensor's length must be dynamic, or it is stored as a sequence where it cannot be; all leaves have
one length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten, leaf_paths, unflatten
from penstock.capture.converted.assertions import equal_number
from penstock.capture.indexing import read_element, read_item, stored_as_sequence
from penstock.capture.leaves import as_values
from penstock.capture.location import user_line
from penstock.capture.refusals import describe
from penstock.capture.tensor_rules import size_of
from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.worlds import SizePair
from penstock.errors import ArgumentError, PenstockError, SizeError, StructureError, report
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def as_sequence(tracer: Tracer, value: Any, what: str) -> TracedTensor:
    """A tensor whose elements have slots."""
    tensor = tracer.tensor(value)
    type_ = tensor.traced.value.type
    assert isinstance(type_, TensorType)
    if not type_.shape:
        raise ArgumentError(
            report(
                f"{what} needs a dimension to take apart.",
                where=user_line(),
                facts=[("tensor", str(type_))],
                todo="Pass a tensor with at least one dimension.",
            )
        )
    if isinstance(type_.shape[0], str):
        return tensor
    tracer.dimensions.require_dynamic(tensor.traced.origins[0])
    return stored_as_sequence(tracer, tensor)


def length_pair(tracer: Tracer, value: Any) -> SizePair | None:
    """The length of a tensor or array in both worlds."""
    if isinstance(value, TracedTensorArray):
        return value.length
    first, second = tracer.tensor(value).traced.fakes
    return first.shape[0], second.shape[0]


class Elements:
    """Sequences of one length, read by one index."""

    def __init__(self, tracer: Tracer, xs: Any, what: str) -> None:
        self._tracer = tracer
        xs = as_values(xs, f"{what}: xs", "xs")
        leaves, self.structure = flatten(xs)
        self._originals = [tracer.leaf(leaf) for leaf in leaves]
        self.leaves = [self._readable(leaf, what) for leaf in self._originals]
        self._what, self._paths = what, leaf_paths(xs, "xs")
        self.pair = self._common_length()

    def length(self) -> TracedTensor:
        """The number of elements as a traced integer; a run checks that sequences agree in it."""
        first, *others = self._originals
        length = self._length_of(first)
        seen = {_symbol(first)}
        for other in others:
            if _symbol(other) not in seen:
                seen.add(_symbol(other))
                length = equal_number(
                    self._tracer, length, self._length_of(other), self._lengths_differ(SizeError)
                )
        return length

    def _length_of(self, leaf: Any) -> TracedTensor:
        if isinstance(leaf, TracedTensorArray):
            return leaf.size()  # type: ignore[return-value]
        return self._tracer.tensor(_plain(size_of(self._tracer, leaf, 0)))

    def at(self, index: TracedTensor) -> Any:
        """The nested element at `index`."""
        leaves = [
            self._read(leaf, original, index)
            for leaf, original in zip(self.leaves, self._originals, strict=True)
        ]
        return unflatten(self.structure, leaves)

    @property
    def can_fork(self) -> bool:
        """Whether every element has a slot of its own."""
        return all(
            isinstance(leaf, TracedTensor) and leaf.traced.value.type.is_sequence  # type: ignore[union-attr]
            for leaf in self.leaves
        )

    def _readable(self, leaf: Any, what: str) -> Any:
        return (
            leaf if isinstance(leaf, TracedTensorArray) else as_sequence(self._tracer, leaf, what)
        )

    def _read(self, leaf: Any, original: Any, index: TracedTensor) -> Any:
        if isinstance(leaf, TracedTensorArray):
            return leaf.read(index)
        if leaf.traced.value.type.is_sequence:
            return read_element(self._tracer, leaf, index, original.traced.is_control)
        return read_item(self._tracer, torch.Tensor.__getitem__, (leaf, index), {})

    def _common_length(self) -> SizePair | None:
        pairs = [length_pair(self._tracer, leaf) for leaf in self._originals]
        known = [pair for pair in pairs if pair is not None and pair[0] == pair[1]]
        if pairs and len(set(known)) <= 1:
            return pairs[0]
        raise self._lengths_differ(StructureError)

    def _lengths_differ(self, error: type[PenstockError]) -> PenstockError:
        described = map(describe, self._originals)
        return error(
            report(
                f"{self._what}: all sequences must have the same length.",
                where=user_line(),
                facts=list(zip(self._paths, described, strict=True)),
                todo="Pass at least one tensor, and tensors whose first dimensions are equal.",
            )
        )


def _symbol(leaf: Any) -> Any:
    """What tells lengths that are equal for certain; arrays have none."""
    if isinstance(leaf, TracedTensorArray):
        return leaf
    return leaf.traced.value.type.shape[0]


def _plain(size: Any) -> Any:
    """A size that must not make its dimension dynamic again."""
    return size if isinstance(size, torch.Tensor) else int(size)
