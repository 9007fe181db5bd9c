"""What a map returns: one value per instance, or one value with stacked or padded leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from penstock.capture.location import user_line
from penstock.capture.structure import leaf_paths
from penstock.capture.tensor_types import type_of
from penstock.capture.trace import TracedProgram
from penstock.errors import ArgumentError, ColumnError, report


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


def as_list(traced: TracedProgram, columns: list[list[torch.Tensor]], count: int) -> list[Any]:
    """One output per instance."""
    return [traced.rebuild([column[number] for column in columns]) for number in range(count)]


def as_stack(traced: TracedProgram, columns: list[list[torch.Tensor]]) -> Any:
    """The output structure once, every leaf stacked."""
    paths = _paths(traced, columns)
    leaves = [_stacked(column, path) for column, path in zip(columns, paths, strict=True)]
    return traced.rebuild(leaves)


def as_padded(traced: TracedProgram, columns: list[list[torch.Tensor]]) -> Any:
    """The output structure once, every leaf a `Padded`."""
    paths = _paths(traced, columns)
    leaves = [_padded(column, path) for column, path in zip(columns, paths, strict=True)]
    return traced.rebuild(leaves)


def _paths(traced: TracedProgram, columns: list[list[torch.Tensor]]) -> list[str]:
    example = traced.rebuild([column[0] for column in columns])
    paths = leaf_paths(example, "result")
    kept = [not _is_static(leaf) for leaf in traced.results.leaves]
    return [path for path, keep in zip(paths, kept, strict=True) if keep]


def _is_static(leaf: Any) -> bool:
    return hasattr(leaf, "value")


def _stacked(rows: list[torch.Tensor], path: str) -> torch.Tensor:
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise _unequal("stack", path, rows[0], number, row, 'Use out="pad" or out="list".')
    return torch.stack(rows)


def _padded(rows: list[torch.Tensor], path: str) -> Padded:
    if rows[0].dim() == 0:
        return Padded(_stacked(rows, path), None)
    for number, row in enumerate(rows):
        if row.shape[1:] != rows[0].shape[1:]:
            todo = 'Only the first dimension is padded: use out="list".'
            raise _unequal("pad", path, rows[0], number, row, todo)
    values = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
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
