"""What generated code is run on to be read: stand-ins for tensors and for modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from penstock.run.strips.arguments import Argument
from penstock.run.strips.sizes import Extent, Refused, Size, plain_strides

#: What a pointer counts from, and what else a kernel takes: dimension 0 of an argument times a
#: number, or a number.
ARGUMENT, BUFFER, SIZE, NUMBER = range(4)
#: There is no such operand.
ABSENT = -1


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A stand-in for a tensor: where it begins and how it lies in memory."""

    #: ARGUMENT or BUFFER, and which.
    kind: int
    index: int
    #: Bytes from where that begins.
    offset: int
    dtype: torch.dtype
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]

    def size(self) -> tuple[Extent, ...]:
        """As a tensor has it."""
        return self.shape

    def stride(self) -> tuple[Extent, ...]:
        """As a tensor has it."""
        return self.strides

    @property
    def place(self) -> tuple[int, int, int]:
        """The words for its pointer."""
        return self.kind, self.index, self.offset


def reinterpret(
    base: View, shape: Sequence[Extent], strides: Sequence[Extent], offset: object
) -> View:
    """The same memory seen in another way."""
    if type(offset) is not int or not isinstance(base, View):
        raise Refused("a view at a place that depends on sizes")
    start = base.offset + offset * base.dtype.itemsize
    return View(base.kind, base.index, start, base.dtype, tuple(shape), tuple(strides))


def views_of(arguments: Sequence[Argument]) -> tuple[list[View], int | None]:
    """Stand-ins for the arguments; and the first whose dimension 0 is the number of rows, which
    serves for all that have it.
    """
    rows = next((place for place, argument in enumerate(arguments) if argument.has_rows), None)
    views = []
    for place, argument in enumerate(arguments):
        shape: tuple[Extent, ...] = argument.shape
        if argument.is_free:
            sized_by = rows if argument.has_rows and rows is not None else place
            shape = (Size(1, sized_by), *shape)
        strides = plain_strides(shape)
        views.append(View(ARGUMENT, place, 0, argument.dtype, shape, strides))
    return views, rows


class Named:
    """A stand-in for a module: what is known in it, and names of what is not, which may be looked
    up but not called.
    """

    def __init__(self, name: str, known: Mapping[str, object]) -> None:
        self._name = name
        self._known = known

    def __getattr__(self, part: str) -> Any:
        name = f"{self._name}.{part}"
        return self._known.get(name) or Named(name, self._known)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise Refused(f"{self._name} is called")
