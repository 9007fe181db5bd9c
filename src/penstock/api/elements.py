"""Sequences taken apart into elements, and results put back into sequences.

A nested value of sequences of one length is a sequence of nested elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from penstock.calls.structure import (
    Structure,
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    unflatten,
)
from penstock.capture.leaves import as_values, same_type
from penstock.capture.location import user_line
from penstock.capture.refusals import describe
from penstock.capture.tensor_array import TensorArray
from penstock.capture.tensor_types import TensorType, type_of
from penstock.errors import StructureError, report


class Elements:
    """The elements of `xs` along dimension 0; every tensor in it has the same length."""

    def __init__(self, xs: Any, what: str) -> None:
        xs = as_values(xs, f"{what}: xs", "xs")
        self._leaves, self._structure = flatten(xs)
        lengths = [_length(leaf) for leaf in self._leaves]
        if not lengths or None in lengths or len(set(lengths)) > 1:
            raise _length_error(what, leaf_paths(xs, "xs"), self._leaves, lengths)
        #: How many elements there are.
        self.length = lengths[0] or 0

    def __iter__(self) -> Iterator[Any]:
        yield from self._elements()

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(self._elements())

    def empty(self) -> Any:
        """An element with the right types and no meaning, for sequences that have none."""
        return unflatten(self._structure, [_empty_element(leaf) for leaf in self._leaves])

    def _elements(self) -> list[Any]:
        columns = [_take_apart(leaf) for leaf in self._leaves]
        return [unflatten(self._structure, row) for row in zip(*columns, strict=True)]


def stack_results(results: list[Any], example: Any, what: str, ragged: bool = False) -> Any:
    """One value with the leaves of all `results` stacked.

    `example` gives the types where there are none. With `ragged`, leaves of different shapes become
    a TensorArray; else they are an error.
    """
    first, structure = flatten(example)
    rows = [
        _leaves_like(structure, example, result, number, what)
        for number, result in enumerate(results)
    ]
    if not rows:
        return unflatten(structure, [type_of(leaf).empty(0) for leaf in first])
    columns = zip(*rows, strict=True)
    paths = leaf_paths(example, "result")
    return unflatten(
        structure,
        [
            _stack(list(column), path, what, ragged)
            for column, path in zip(columns, paths, strict=True)
        ],
    )


def _leaves_like(
    structure: Structure, example: Any, result: Any, number: int, what: str
) -> list[Any]:
    try:
        return flatten_like(structure, result)
    except StructureMismatchError:
        raise _result_error(what, 0, describe(example), number, describe(result)) from None


def _stack(column: list[Any], path: str, what: str, ragged: bool) -> Any:
    for number, leaf in enumerate(column):
        same_dtype = isinstance(leaf, torch.Tensor) and leaf.dtype == column[0].dtype
        if not (same_type(column[0], leaf) or (ragged and same_dtype)):
            facts = (f"{path}   {describe(value)}" for value in (column[0], leaf))
            raise _result_error(what, 0, next(facts), number, next(facts))
    if all(same_type(column[0], leaf) for leaf in column):
        return torch.stack(column)
    array = TensorArray(len(column))
    for number, leaf in enumerate(column):
        array = array.write(number, leaf)
    return array


def _result_error(what: str, number: int, fact: str, other: int, clash: str) -> StructureError:
    return StructureError(
        report(
            f"{what}: the function must return the same types for every element.",
            where=user_line(),
            facts=[(f"element {number}", fact), (f"element {other}", clash)],
            todo=f"Make the function return {fact.split('   ')[-1]} for every element.",
        )
    )


def _length(leaf: Any) -> int | None:
    if isinstance(leaf, TensorArray):
        return int(leaf.size())
    return leaf.shape[0] if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 else None


def _take_apart(leaf: Any) -> list[torch.Tensor]:
    if isinstance(leaf, TensorArray):
        return [leaf.read(number) for number in range(int(leaf.size()))]
    return list(leaf.unbind(0))


def _empty_element(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, TensorArray):
        leaf = leaf.stack()
    return TensorType(leaf.dtype, tuple(leaf.shape[1:]), leaf.device).empty()


def _length_error(
    what: str, paths: list[str], leaves: list[Any], lengths: list[int | None]
) -> StructureError:
    shown = list(zip(paths, map(describe, leaves), strict=True))
    other = next(
        (i for i, length in enumerate(lengths) if length is None or length != lengths[0]), 0
    )
    return StructureError(
        report(
            f"{what}: xs must be tensors with one length along dimension 0.",
            where=user_line(),
            facts=[shown[0], shown[other]] if other else shown[:1] or [("xs", "no tensors")],
            todo="Pass tensors of at least one dimension whose first dimensions are equal.",
        )
    )
