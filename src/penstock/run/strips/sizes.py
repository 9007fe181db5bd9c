"""Sizes as generated code computes with them: a number, or a number times dimension 0 of one of its
arguments.

All else is refused: sums, quotients, comparisons, and whether a size is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import torch

#: Stands for the argument of a size that depends on none.
CONSTANT = -1


class Refused(Exception):
    """Generated code does something that is not understood."""


class Size:
    """A whole number times dimension 0 of an argument."""

    __slots__ = ("argument", "coefficient")

    def __init__(self, coefficient: int, argument: int) -> None:
        self.coefficient = coefficient
        self.argument = argument

    def __mul__(self, other: object) -> Size:
        if type(other) is not int or other < 1:
            raise Refused(f"a size times {other}")
        return Size(self.coefficient * other, self.argument)

    __rmul__ = __mul__

    def _refuse(self, other: object = None) -> NoReturn:
        raise Refused("something depends on a size")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _refuse


Extent: TypeAlias = int | Size


def exact(extent: Any) -> tuple[int, int]:
    """Its number and its argument, which can be compared."""
    if isinstance(extent, Size):
        return extent.coefficient, extent.argument
    if type(extent) is not int:
        raise Refused(f"{type(extent).__name__} for a size")
    return extent, CONSTANT


def times(one: Extent, other: Extent) -> Extent:
    """The product of two sizes, of which one is a number."""
    if isinstance(one, Size) and isinstance(other, Size):
        raise Refused("a product of sizes")
    return one * other


def count(shape: Sequence[Extent]) -> Extent:
    """The elements of a tensor."""
    elements: Extent = 1
    for extent in shape:
        if exact(extent)[0] < 1:
            raise Refused("a tensor without elements")
        elements = times(elements, extent)
    return elements


def plain_strides(shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """The strides of a contiguous tensor."""
    return tuple(count(shape[place + 1 :]) for place in range(len(shape)))


def is_contiguous(shape: Sequence[Extent], strides: Sequence[Extent]) -> bool:
    """Whether elements lie one behind the other, in order."""
    return all(
        exact(extent) == (1, CONSTANT) or exact(stride) == exact(plain)
        for extent, stride, plain in zip(shape, strides, plain_strides(shape), strict=True)
    )


def is_dense(shape: Sequence[Extent], strides: Sequence[Extent]) -> bool:
    """Whether elements lie one behind the other, with dimensions in any order."""
    left = [
        (extent, exact(stride))
        for extent, stride in zip(shape, strides, strict=True)
        if exact(extent) != (1, CONSTANT)
    ]
    behind: Extent = 1
    while left:
        fits = [place for place, (_, stride) in enumerate(left) if stride == exact(behind)]
        if not fits:
            return False
        behind = times(behind, left.pop(fits[0])[0])
    return True


def reach(shape: Sequence[Extent], strides: Sequence[Extent]) -> Extent:
    """Elements from the first one of a tensor on among which all its own are, if it is dense or
    there are gaps between the entries of dimension 0 alone.
    """
    if is_dense(shape, strides):
        return count(shape)
    entry = (shape[1:], strides[1:])
    if exact(count(entry[0]))[1] == CONSTANT and is_dense(*entry):
        apart, argument = exact(strides[0])
        if argument == CONSTANT and apart >= exact(count(entry[0]))[0]:
            return times(shape[0], apart)
    raise Refused("memory with gaps")


def bytes_of(shape: Sequence[Extent], dtype: torch.dtype) -> Extent:
    """The memory of a dense tensor."""
    return times(count(shape), dtype.itemsize)
