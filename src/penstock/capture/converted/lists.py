"""Lists that grow in traced code: arrays with a traced number of elements.

A traced list behaves like the list it stands for, where that can be: append, pop, index, len,
iteration and `torch.stack`. It may be changed only in the body that owns it; each traced branch or
iteration owns a copy, which costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from penstock.calls.structure import Structure, flatten, unflatten
from penstock.capture.active import active_tracer
from penstock.capture.converted.list_refusals import nothing_known, other_structure, unsupported
from penstock.capture.leaves import as_values
from penstock.capture.location import user_place
from penstock.capture.recording import record
from penstock.capture.traced_array import TracedTensorArray
from penstock.errors import StructureError, TracedValueError, report
from penstock.ir.program import ArrayNew
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class UnknownElements(BaseException):
    """An element is asked for before the first of its kind was seen; caught where types are
    found."""


class TracedList:
    """A list whose length only a run knows."""

    __slots__ = ("_arrays", "_count", "capacity", "has_holes", "scope", "stacked", "structure")

    def __init__(
        self,
        structure: Structure | None,
        arrays: list[Any] | None,
        count: Any,
        has_holes: bool = False,
        stacked: list[Any] | None = None,
    ) -> None:
        #: The structure of every element; None while nothing was appended.
        self.structure = structure
        #: One array for each leaf of an element; None while the stacked leaves serve as well.
        self._arrays = arrays
        #: The number of elements; a function that finds it where nobody has asked yet.
        self._count = count
        #: Whether the arrays may be longer than the list.
        self.has_holes = has_holes
        #: How long it will be at least, where that is known before it has an element.
        self.capacity: Any = None
        #: The leaves stacked, where that is how they were made.
        self.stacked = stacked
        #: The body that may change it.
        self.scope = _tracer().scope

    @classmethod
    def of(cls, tracer: Tracer, elements: list[Any], name: str) -> TracedList:
        """The traced list of these elements."""
        made = cls(None, [], tracer.tensor(0))
        for element in elements:
            made.append(element)
        return made

    @classmethod
    def of_stacked(cls, structure: Structure, leaves: list[Any], count: Any) -> TracedList:
        """The list of the elements of tensors or arrays of one length."""
        if not any(isinstance(leaf, TracedTensorArray) for leaf in leaves):
            return cls(structure, None, count, stacked=leaves)
        tracer = _tracer()
        arrays = [
            leaf if isinstance(leaf, TracedTensorArray) else tracer.unstack(leaf) for leaf in leaves
        ]
        return cls(structure, arrays, count)

    @property
    def arrays(self) -> list[Any]:
        """One array for each leaf of an element."""
        if self._arrays is not None:
            return self._arrays
        tracer = _tracer()
        made = [tracer.unstack(leaf) for leaf in self.stacked or ()]
        if tracer.scope is self.scope:
            self._arrays = made
        return made

    @arrays.setter
    def arrays(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    @property
    def count(self) -> Any:
        """The number of elements as a traced integer."""
        if not callable(self._count):
            return self._count
        count = self._count()
        if _tracer().scope is self.scope:
            self._count = count
        return count

    @count.setter
    def count(self, count: Any) -> None:
        self._count = count

    def copy(self) -> TracedList:
        """The same elements, for the body that is being filled."""
        arrays = None if self._arrays is None else list(self._arrays)
        made = TracedList(self.structure, arrays, self._count, self.has_holes, self.stacked)
        made.capacity = self.capacity
        return made

    def given(self, structure: Structure, elements: list[TensorType | None]) -> TracedList:
        """The list with known elements; one to which nothing was appended has to be told."""
        if self.structure is None:
            self.structure = structure
            self.arrays = [_empty_array(_tracer(), item, self.capacity) for item in elements]
        return self

    def given_as(self, other: TracedList) -> TracedList:
        """The list with the elements of another."""
        if other.structure is None:
            return self
        return self.given(other.structure, [array.type.element for array in other.arrays])

    def append(self, value: Any) -> None:
        """Add an element at the end."""
        tracer = self._changing("append")
        leaves, structure = flatten(as_values(value, "list.append: an element", "element"))
        self.given(structure, [None] * len(leaves))
        if structure != self.structure:
            raise other_structure(self.structure, value)
        written = [
            array.write(self.count, leaf) for array, leaf in zip(self.arrays, leaves, strict=True)
        ]
        self.arrays = written
        self.count = _plus(tracer, self.count, 1)

    def extend(self, values: Any) -> None:
        """Add several elements, as many as Python knows."""
        for value in values:
            self.append(value)

    def pop(self, index: int = -1) -> Any:
        """Take the last element off."""
        tracer = self._changing("pop")
        if index != -1:
            raise unsupported("pop from the middle")
        value = self[-1]
        self.count = _plus(tracer, self.count, -1)
        self.has_holes = True
        return value

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise unsupported("a slice")
        tracer = _tracer()
        if self.stacked is not None and self.structure is not None:
            return unflatten(self.structure, [leaf[index] for leaf in self.stacked])
        if isinstance(index, int) and index < 0:
            index = _plus(tracer, self.count, index)
        if self.structure is None:
            raise UnknownElements if tracer.trials else nothing_known()
        return unflatten(self.structure, [array.read(index) for array in self.arrays])

    def __setitem__(self, index: Any, value: Any) -> None:
        tracer = self._changing("item assignment")
        if isinstance(index, int) and index < 0:
            index = _plus(tracer, self.count, index)
        leaves, structure = flatten(as_values(value, "a list's element", "element"))
        if structure != self.structure:
            raise other_structure(self.structure, value)
        self.arrays = [a.write(index, leaf) for a, leaf in zip(self.arrays, leaves, strict=True)]

    def stack(self) -> Any:
        """All elements along a new first dimension, in the structure of an element."""
        if self.structure is None:
            raise nothing_known()
        if self.stacked is not None:
            return unflatten(self.structure, self.stacked)
        if not self.has_holes:
            return unflatten(self.structure, [array.stack() for array in self.arrays])
        tracer = _tracer()
        numbers = record(tracer, torch.arange, (self.count,), {})
        return tracer.map_fn(lambda number: self[number], numbers)

    def __len__(self) -> int:
        raise TracedValueError(
            report(
                "The length of a list that grows in traced code is known only at run time.",
                where=user_place(),
                facts=[("needed", "a Python int"), ("list", repr(self))],
                todo="Call len() in converted code, where it gives a traced integer.",
            )
        )

    def __iter__(self) -> Any:
        raise unsupported("iteration outside of a `for` statement")

    def __bool__(self) -> bool:
        return len(self) > 0

    def __repr__(self) -> str:
        types = [str(array.type.element) for array in self._arrays or ()]
        return f"<traced list of ({', '.join(types)})>"

    def _changing(self, what: str) -> Tracer:
        tracer: Tracer = _tracer()
        if tracer.scope is not self.scope:
            raise StructureError(
                report(
                    f"list.{what}: the list belongs to code around this branch or loop.",
                    where=user_place(),
                    facts=[("changed", "inside"), ("made", "outside, under another name")],
                    todo="Change it under the name it was made with, or return the new element.",
                )
            )
        self._arrays, self.stacked = self.arrays, None
        return tracer


def _tracer() -> Any:
    tracer = active_tracer()
    assert tracer is not None, "a traced list outlived its trace"
    return tracer


def _plus(tracer: Tracer, count: Any, number: int) -> Any:
    return record(tracer, torch.Tensor.add, (tracer.tensor(count), number), {})


def _empty_array(tracer: Tracer, element: TensorType | None, capacity: Any) -> TracedTensorArray:
    size = tracer.tensor(0 if capacity is None else capacity)
    grows = capacity is None
    output = tracer.emit(ArrayNew(grows), (size,), (ArrayType(element),))[0]
    length = None if grows else size.traced.hint
    return TracedTensorArray(tracer, output, tracer.scope, length, grows)


def _flatten_list(item: TracedList) -> tuple[list[Any], Any]:
    return [*item.arrays, item.count], (item.structure, item.has_holes)


def _unflatten_list(children: Any, context: Any) -> TracedList:
    *arrays, count = children
    if active_tracer() is None or not all(hasattr(array, "type") for array in arrays):
        made = object.__new__(TracedList)
        made.structure, made.has_holes = context
        made._arrays, made._count, made.stacked, made.scope = arrays, count, None, None
        made.capacity = None
        return made
    return TracedList(context[0], arrays, count, context[1])


pytree.register_pytree_node(
    TracedList,
    _flatten_list,
    _unflatten_list,
    serialized_type_name="penstock.TracedList",
    flatten_with_keys_fn=lambda item: (
        [
            *((pytree.SequenceKey(n), array) for n, array in enumerate(item.arrays)),
            (pytree.GetAttrKey("length"), item.count),
        ],
        (item.structure, item.has_holes),
    ),
)
