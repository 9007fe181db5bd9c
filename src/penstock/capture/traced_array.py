"""TensorArrays of a program being traced: each version stands for one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.indexing import stored_as_sequence
from penstock.capture.location import user_line
from penstock.capture.recording import record_as
from penstock.capture.tensor_array import TensorArray
from penstock.capture.type_rules import join_types
from penstock.capture.worlds import SizePair
from penstock.errors import StructureError, report
from penstock.ir.program import (
    ArrayNew,
    ArrayRead,
    ArraySize,
    ArrayStack,
    ArrayUnstack,
    ArrayWrite,
    Value,
)
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.scopes import Scope
    from penstock.capture.traced_tensor import TracedTensor
    from penstock.capture.tracer import Tracer


@TensorArray.register
class TracedTensorArray:
    """One version of an array; the methods are those of `TensorArray`."""

    def __init__(
        self,
        tracer: Tracer,
        value: Value,
        scope: Scope,
        length: SizePair | None = None,
        dynamic_size: bool = False,
    ) -> None:
        self._tracer = tracer
        self.value = value
        self.scope = scope
        #: The number of elements in both worlds, where it is known.
        self.length = length
        self.dynamic_size = dynamic_size

    @property
    def type(self) -> ArrayType:
        """The type of the value."""
        assert isinstance(self.value.type, ArrayType)
        return self.value.type

    def write(self, index: Any, value: Any) -> TracedTensorArray:
        """A new version with `value` at `index`."""
        tracer = self._tracer
        element = tracer.tensor(value)
        joined = self._joined(element.traced.value.type)
        element = self._fitting(element, joined)
        type_ = ArrayType(self._fixed(joined))
        inputs = (self, tracer.integer(index, "TensorArray.write: index"), element)
        output = tracer.emit(ArrayWrite(), inputs, (type_,))[0]
        length = None if self.dynamic_size else self.length
        return TracedTensorArray(tracer, output, tracer.scope, length, self.dynamic_size)

    def read(self, index: Any) -> torch.Tensor:
        """The element at `index`."""
        tracer = self._tracer
        element = self._known_element("read")
        position = tracer.integer(index, "TensorArray.read: index")
        output = tracer.emit(ArrayRead(), (self, position), (element,))[0]
        return tracer.wrap(output)

    def stack(self) -> torch.Tensor:
        """All elements along a new first dimension."""
        tracer = self._tracer
        element = self._known_element("stack")
        pair = self.length
        length = tracer.worlds.fresh_symbol() if pair is None else tracer.worlds.symbol(pair)
        if isinstance(length, str):
            return self.stacked_as(length, element)
        sequence = self.stacked_as(tracer.worlds.fresh_symbol(), element)
        shape = (length, *element.shape)
        sizes = tuple(-1 if isinstance(size, str) else size for size in shape)
        static = TensorType(element.dtype, shape, element.device)
        return record_as(tracer, torch.Tensor.reshape, (sequence, sizes), static)

    def stacked_as(self, symbol: str, element: TensorType) -> torch.Tensor:
        """The stack with a length of that name."""
        type_ = TensorType(element.dtype, (symbol, *element.shape), element.device)
        output = self._tracer.emit(ArrayStack(), (self,), (type_,))[0]
        return self._tracer.wrap(output)

    def size(self) -> torch.Tensor:
        """The number of elements as a traced integer."""
        tracer = self._tracer
        output = tracer.emit(ArraySize(), (self,), (TensorType("int64"),))[0]
        return tracer.wrap(output, is_control=True, hint=self.length)

    def __repr__(self) -> str:
        return f"<traced {self.type}>"

    def _known_element(self, what: str) -> TensorType:
        element = self.type.element
        if element is None:
            raise StructureError(
                report(
                    f"TensorArray.{what}: nothing is known of the elements yet.",
                    where=user_line(),
                    facts=[("array", "no element written"), ("like", "None")],
                    todo="Give the element type: TensorArray(size, like=tensor).",
                )
            )
        return element

    def _fixed(self, joined: TensorType) -> TensorType:
        """The element type after a write: what is stored by value already stays so."""
        known = self.type.element
        return joined if known is None or known.is_sequence == joined.is_sequence else known

    def _fitting(self, value: TracedTensor, joined: TensorType) -> TracedTensor:
        """A value that is stored as the array's elements are: as a sequence, or whole."""
        fixed, given = self._fixed(joined), value.traced.value.type
        assert isinstance(given, TensorType)
        if given.is_sequence == fixed.is_sequence:
            return value
        if fixed.is_sequence:
            return stored_as_sequence(self._tracer, value)
        return record_as(self._tracer, torch.Tensor.reshape, (value, fixed.shape), fixed)

    def _joined(self, element: Any) -> TensorType:
        known = self.type.element
        joined = element if known is None else join_types(self._tracer.worlds, known, element)
        if joined is None:
            raise StructureError(
                report(
                    "TensorArray.write: the value does not have the array's element type.",
                    where=user_line(),
                    facts=[("element type", str(known)), ("value", str(element))],
                    todo=f"Write {known}, or make the array with another `like`.",
                )
            )
        assert isinstance(joined, TensorType)
        return joined


def new_array(tracer: Tracer, size: Any, dynamic_size: bool, like: Any) -> TracedTensorArray:
    """`TensorArray(size, dynamic_size=..., like=...)`."""
    length = tracer.integer(size, "TensorArray: size")
    element = None if like is None else tracer.tensor(like).traced.value.type
    assert element is None or isinstance(element, TensorType)
    output = tracer.emit(ArrayNew(dynamic_size), (length,), (ArrayType(element),))[0]
    facts = length.traced
    pair = (facts.number, facts.number) if isinstance(facts.number, int) else facts.hint
    return TracedTensorArray(
        tracer, output, tracer.scope, None if dynamic_size else pair, dynamic_size
    )


def unstacked(tracer: Tracer, tensor: Any) -> TracedTensorArray:
    """`TensorArray.unstack(tensor)`."""
    sequence = tracer.sequence(tensor, "TensorArray.unstack")
    type_ = sequence.traced.value.type
    assert isinstance(type_, TensorType)
    output = tracer.emit(ArrayUnstack(), (sequence,), (ArrayType(type_.element),))[0]
    return TracedTensorArray(tracer, output, tracer.scope, tracer.length_of(tensor))
