"""What a map returns: one value per instance, or one value with stacked or padded leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from penstock.calls.structure import flatten, leaf_paths, unflatten
from penstock.capture.location import user_line
from penstock.capture.tensor_types import type_of
from penstock.errors import ArgumentError, ColumnError, report

#: From the tensors of one instance to the value that the function returned for it.
Rebuild = Callable[[list[Any]], Any]


class Padded(NamedTuple):
    """A leaf of `out="pad"`: rows of different lengths in one tensor."""

    #: The instances along the first dimension, filled up with zeros along the second.
    values: torch.Tensor
    #: int64, one length per instance; None where the leaf has no dimension to pad.
    lengths: torch.Tensor | None


def check_form(out: str) -> None:
    """Refuse a form of output that does not exist."""
    if out not in ("list", "stack", "pad"):
        raise ArgumentError(
            report(
                "map: out must name a form of output.",
                where=user_line(),
                facts=[("out", repr(out)), ("expected", "'list', 'stack' or 'pad'")],
                todo="Leave it out to get one output per instance in a list.",
            )
        )


def in_form(out: str, rebuild: Rebuild, columns: Sequence[Sequence[torch.Tensor]]) -> Any:
    """The output structure once, with leaves stacked or padded; `rebuild` makes it from leaves."""
    first = rebuild([column[0] for column in columns])
    example, _ = flatten(first)
    paths = zip(leaf_paths(first, "result"), example, strict=True)
    named = [path for path, leaf in paths if isinstance(leaf, torch.Tensor)]
    shape = _stacked if out == "stack" else _padded
    return rebuild([shape(rows, path) for rows, path in zip(columns, named, strict=True)])


def in_form_of_values(out: str, results: list[Any]) -> Any:
    """The same for values that were returned one by one."""
    if out == "list" or not results:
        return results
    first, structure = flatten(results[0])
    places = [n for n, leaf in enumerate(first) if isinstance(leaf, torch.Tensor)]
    rows = [flatten(result)[0] for result in results]
    columns = [[row[place] for row in rows] for place in places]

    def rebuild(tensors: list[Any]) -> Any:
        leaves = list(first)
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = tensor
        return unflatten(structure, leaves)

    return in_form(out, rebuild, columns)


def _stacked(rows: Sequence[torch.Tensor], path: str) -> torch.Tensor:
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise _unequal("stack", path, rows[0], number, row, 'Use out="pad" or out="list".')
    return torch.stack(list(rows))


def _padded(rows: Sequence[torch.Tensor], path: str) -> Padded:
    if rows[0].dim() == 0:
        return Padded(_stacked(rows, path), None)
    for number, row in enumerate(rows):
        if row.shape[1:] != rows[0].shape[1:]:
            todo = 'Only the first dimension is padded: use out="list".'
            raise _unequal("pad", path, rows[0], number, row, todo)
    values = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    return Padded(values, torch.tensor([len(row) for row in rows]))


def _unequal(
    form: str, path: str, first: torch.Tensor, number: int, other: torch.Tensor, todo: str
) -> ColumnError:
    return ColumnError(
        report(
            f'map: out="{form}" needs the same shape from every instance.',
            where=user_line(),
            facts=[
                ("instance 0", f"{path}   {type_of(first)}"),
                (f"instance {number}", f"{path}   {type_of(other)}"),
            ],
            todo=todo,
        )
    )
