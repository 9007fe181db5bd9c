"""TensorArray: an array of tensors that programs read and write by index, as a persistent value.

`write` returns a new version; every older version keeps its value. The class here holds real
tensors and defines the meaning. While a tracer is active, making an array gives the tracer's own
class, which is registered as a virtual subclass so that `isinstance(array, TensorArray)` holds for
both.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import Any, Self

import torch

from penstock.capture.active import active_tracer
from penstock.capture.location import user_line
from penstock.capture.tensor_types import TensorType, type_of
from penstock.errors import ArgumentError, StructureError, report
from penstock.faults import array_index_out_of_range, negative_size, never_written

#: What may be used as an index or an element: a tensor, or the Python number for it.
Index = int | torch.Tensor
Element = torch.Tensor | bool | int | float


class TensorArray(metaclass=ABCMeta):
    """An array of tensors, each written and read by its index.

    It equals a Python list whose items are assigned on a copy::

        elements = [None] * size
        new = list(old); new[i] = value     # new = old.write(i, value)
        old[i]                              # old.read(i)
        torch.stack(old)                    # old.stack()

    Arguments:
        size: the number of elements, none of them written yet.
        dynamic_size: whether writing beyond the end makes the array larger.
        like: a tensor with the type of every element. Needed where an array may be stacked while it
            is empty; elements of another type are then refused.

    Gradients flow from what is read or stacked to the tensor that was written there.

    >>> old = TensorArray(2).write(0, 1.5).write(1, 2.5)
    >>> new = old.write(0, 7.0)
    >>> old.stack(), new.stack()
    (tensor([1.5000, 2.5000]), tensor([7.0000, 2.5000]))
    """

    __slots__ = ("_dynamic_size", "_element_type", "_elements")

    #: None where nothing was written yet.
    _elements: tuple[torch.Tensor | None, ...]
    _dynamic_size: bool
    #: The type all elements must have; None where only `stack` asks for equal types.
    _element_type: TensorType | None

    def __new__(
        cls, size: Index, *, dynamic_size: bool = False, like: Element | None = None
    ) -> Self:
        tracer = active_tracer()
        if tracer is not None:
            traced: Any = tracer.tensor_array(size, dynamic_size, like)
            return traced  # type: ignore[no-any-return]  # a virtual subclass
        element_type = None if like is None else type_of(torch.as_tensor(like))
        count = _as_index(size, "size")
        if count < 0:
            raise negative_size(count).at(user_line())
        return cls._version((None,) * count, dynamic_size, element_type)

    @classmethod
    def _version(
        cls,
        elements: tuple[torch.Tensor | None, ...],
        dynamic_size: bool,
        element_type: TensorType | None,
    ) -> Self:
        array = object.__new__(cls)
        array._elements = elements
        array._dynamic_size = dynamic_size
        array._element_type = element_type
        return array

    @classmethod
    def unstack(cls, tensor: torch.Tensor) -> TensorArray:
        """The array whose elements are `tensor[0]`, `tensor[1]`, ...

        >>> TensorArray.unstack(torch.tensor([[1, 2], [3, 4]])).read(1)
        tensor([3, 4])
        """
        tracer = active_tracer()
        if tracer is not None:
            traced: TensorArray = tracer.unstack(tensor)
            return traced
        if tensor.dim() == 0:
            raise ArgumentError(
                report(
                    "TensorArray.unstack needs a dimension to take apart.",
                    where=user_line(),
                    facts=[("tensor", str(type_of(tensor)))],
                    todo="Pass a tensor with at least one dimension.",
                )
            )
        element_type = TensorType(tensor.dtype, tuple(tensor.shape[1:]), tensor.device)
        return cls._version(tensor.unbind(0), False, element_type)

    def write(self, index: Index, value: Element) -> Self:
        """A new version with `value` at `index`; this version stays as it is."""
        position = _as_index(index, "index")
        count = len(self._elements)
        if position < 0 or (position >= count and not self._dynamic_size):
            raise array_index_out_of_range("write", position, count).at(user_line())
        element = torch.as_tensor(value)
        self._check_element(element, position)
        filled = self._elements + (None,) * (position + 1 - count)
        elements = (*filled[:position], element, *filled[position + 1 :])
        return self._version(elements, self._dynamic_size, self._element_type)

    def read(self, index: Index) -> torch.Tensor:
        """The element at `index`, which must have been written."""
        position = _as_index(index, "index")
        count = len(self._elements)
        if not 0 <= position < count:
            raise array_index_out_of_range("read", position, count).at(user_line())
        return self._written(position, "read")

    def stack(self) -> torch.Tensor:
        """All elements along a new first dimension; all must be written and of one type."""
        elements = [self._written(position, "stack") for position in range(len(self._elements))]
        if elements:
            _check_equal_types(elements)
            return torch.stack(elements)
        if self._element_type is None:
            raise StructureError(
                report(
                    "TensorArray.stack: an empty array has no element type.",
                    where=user_line(),
                    facts=[("size", "0"), ("like", "None")],
                    todo="Give the element type: TensorArray(size, like=tensor).",
                )
            )
        return self._element_type.empty(0)

    def size(self) -> torch.Tensor:
        """The number of elements, written or not, as a 0-d int64 tensor."""
        return torch.tensor(len(self._elements))

    def __repr__(self) -> str:
        written = sum(element is not None for element in self._elements)
        return f"TensorArray(size={len(self._elements)}, written={written})"

    def _written(self, position: int, method: str) -> torch.Tensor:
        element = self._elements[position]
        if element is None:
            raise never_written(method, position, len(self._elements)).at(user_line())
        return element

    def _check_element(self, element: torch.Tensor, position: int) -> None:
        expected = self._element_type
        if expected is not None and type_of(element) != expected:
            raise StructureError(
                report(
                    "TensorArray.write: the value does not have the array's element type.",
                    where=user_line(),
                    facts=[
                        ("element type", str(expected)),
                        (f"value at {position}", str(type_of(element))),
                    ],
                    todo=f"Write {expected}, or make the array with another `like`.",
                )
            )


def _check_equal_types(elements: list[torch.Tensor]) -> None:
    first = type_of(elements[0])
    for position, element in enumerate(elements):
        if type_of(element) != first:
            raise StructureError(
                report(
                    "TensorArray.stack: the elements do not have one type.",
                    where=user_line(),
                    facts=[
                        ("element 0", str(first)),
                        (f"element {position}", str(type_of(element))),
                    ],
                    todo="Write elements of one type, or read them one by one.",
                )
            )


def _as_index(value: Index, name: str) -> int:
    """`value` as a Python int; refused unless it is one whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1 and _is_integral(value.dtype):
        return int(value)
    shown = str(type_of(value)) if isinstance(value, torch.Tensor) else type(value).__name__
    raise ArgumentError(
        report(
            f"TensorArray: {name} must be one whole number.",
            where=user_line(),
            facts=[(name, shown), ("expected", "an int or int64[]")],
            todo=f"Convert it first, e.g. with .to(torch.int64), and pass one {name} at a time.",
        )
    )


def _is_integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
