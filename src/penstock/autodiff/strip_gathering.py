"""What native code gathers from a backward half for the gradients of uniform values.

Sums are added up as halves give them; factors wait until there are enough rows for one contraction,
which native code makes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from penstock.autodiff.additions import Collection, Outline, UniformAddition
from penstock.autodiff.contract import Contraction
from penstock.run.strips.code import Made, NativeCode
from penstock.run.strips.words import Given, How

#: The types that native code can add.
ADDED_TYPES = (torch.float32, torch.float64)


class Ungatherable(Exception):
    """A gradient that is left to Python."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """One gradient of a uniform value, or a part of it."""

    wire: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    how: How
    #: The values given that it is made of.
    values: tuple[Made, ...]
    entries: int = 1
    columns: int = 1
    more: int = 0
    #: The row of a table that has no gradient.
    skipped: int = -1

    @property
    def words(self) -> tuple[int, ...]:
        """As native code reads it, but for the place of the gradient."""
        first, second = self.values[0].pointer, self.values[-1].pointer
        item = self.dtype.itemsize
        return (
            self.how,
            0,
            first,
            second,
            self.entries,
            self.columns,
            self.more,
            self.skipped,
            item,
        )


#: Which of its words says where the gradient is, and how many there are.
GRADIENT, GATHERED_WORDS = 1, 9


def find_gathered(
    outline: Outline, given: Sequence[int], code: NativeCode
) -> tuple[Gathered, ...] | None:
    """All that becomes gradients of uniform values, of values given at these places; None where
    some of it is left to Python.
    """
    made = dict(zip(given, code.results, strict=True))
    found: list[Gathered] = []
    try:
        for item in outline.uniform:
            if isinstance(item, UniformAddition):
                found.append(_whole(item.wire, made[item.place]))
            elif isinstance(item, Collection):
                factors = [made[place] for place in item.how.places]
                found += _collected(item.wire, item.how, factors)
    except Ungatherable:
        return None
    return tuple(found)


def kinds_of(gathered: Iterable[Gathered], pointers: int) -> tuple[Given, ...]:
    """What becomes of the value at each pointer."""
    kinds = [Given.ADDEND] * pointers
    for item in gathered:
        for made in item.values:
            kinds[made.pointer] = Given.SUM if item.how is How.WHOLE_SUM else Given.FACTOR
    return tuple(kinds)


def _whole(wire: int, made: Made) -> Gathered:
    if made.entries:
        raise Ungatherable
    return _checked(
        Gathered(wire, made.shape, made.dtype, How.WHOLE_SUM, (made,), 1, prod(made.shape))
    )


def _collected(wire: int, how: Contraction, factors: Sequence[Made]) -> Iterator[Gathered]:
    if not all(made.entries for made in factors):
        raise Ungatherable
    if how.kind == "sum":
        for made in factors:
            columns = prod(how.shape)
            yield _checked(
                Gathered(
                    wire, how.shape, made.dtype, How.SUM_OF_ROWS, (made,), made.entries, columns
                )
            )
        return
    for pair in zip(factors[::2], factors[1::2], strict=True):
        yield _checked(_product(wire, pair) if how.kind == "product" else _table(wire, how, pair))


def _product(wire: int, factors: tuple[Made, ...]) -> Gathered:
    first, second = factors
    shape = (*first.shape, *second.shape)
    if len(shape) != 2 or first.dtype != second.dtype or first.entries != second.entries:
        raise Ungatherable
    return Gathered(wire, shape, first.dtype, How.PRODUCT, factors, first.entries, *shape)


def _table(wire: int, how: Contraction, factors: tuple[Made, ...]) -> Gathered:
    """Each number of the index is a row of the table."""
    index, columns = factors[1], prod(how.shape[1:])
    if index.dtype != torch.int64:
        raise Ungatherable
    entries = index.entries * prod(index.shape)
    dtype, rows = factors[0].dtype, how.shape[0]
    return Gathered(wire, how.shape, dtype, How.TABLE, factors, entries, columns, rows, how.skipped)


def _checked(item: Gathered) -> Gathered:
    """The same, unless its values are not as many as it takes, or of a type that is not added."""
    first = item.values[0]
    count = max(first.entries, 1) * prod(first.shape)
    if item.dtype not in ADDED_TYPES or not count or count != item.entries * item.columns:
        raise Ungatherable
    return item
