"""The instances of a map: how many there are, and which of them one program can serve together.

Instances are split by the number of dimensions of their tensors and by all sizes that cannot be
dynamic; results are put back in the order of the instances.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from penstock.api.batches import Batch
from penstock.api.markers import Shared
from penstock.capture.converted.assertions import failed_assertion
from penstock.capture.location import user_line
from penstock.capture.static import Static
from penstock.errors import ColumnError, PenstockError, report

Shape = tuple[int, ...]


def split_instances(
    batch: Batch, key: Callable[[int, Shape], Hashable]
) -> list[tuple[Sequence[int], Batch]]:
    """The instances by what `key(input, shape)` says of each of their tensors, in order."""
    ragged = [(n, c.shape_of_row) for n, c in enumerate(batch.inputs) if c.shape_of_row is not None]
    if not ragged:
        return [(range(batch.count), batch)]
    keys = [{shape: key(number, shape) for shape in set(shapes)} for number, shapes in ragged]
    if all(len(set(known.values())) == 1 for known in keys):
        return [(range(batch.count), batch)]
    parts: dict[Hashable, list[int]] = {}
    for row, shapes in enumerate(zip(*(shapes for _, shapes in ragged), strict=True)):
        place = tuple(known[shape] for known, shape in zip(keys, shapes, strict=True))
        parts.setdefault(place, []).append(row)
    return [(rows, batch.rows(rows)) for rows in parts.values()]


@contextmanager
def naming_instance(number: int | None, name: str) -> Iterator[None]:
    """Note on an exception which instance of a map it came from first; None adds nothing."""
    try:
        yield
    except Exception as error:
        if number is not None:
            error.add_note(f"in instance {number} of {name}.map")
        raise


@contextmanager
def naming_assertions(assertions: dict[str, Any]) -> Iterator[None]:
    """Let an assertion of the program fail under its own name."""
    try:
        yield
    except PenstockError as error:
        found = failed_assertion(error, assertions) if assertions else None
        if found is None:
            raise
    else:
        return
    raise found


def common_count(columns: Sequence[Any]) -> int:
    """The number of instances, which all columns must agree on."""
    counts = {}
    for number, column in enumerate(columns):
        if isinstance(column, Shared | Static):
            continue
        if not isinstance(column, list | tuple | torch.Tensor) or _is_scalar(column):
            raise _not_a_column(number, column)
        counts[number] = len(column)
    if not counts or len(set(counts.values())) > 1:
        raise _uneven_columns(counts)
    return next(iter(counts.values()))


def _is_scalar(column: Any) -> bool:
    return isinstance(column, torch.Tensor) and column.dim() == 0


def _not_a_column(number: int, column: Any) -> ColumnError:
    return ColumnError(
        report(
            f"map: column {number} does not hold one value per instance.",
            where=user_line(),
            facts=[
                (f"column {number}", type(column).__name__),
                ("expected", "a list, a tuple, or a tensor with the instances in front"),
            ],
            todo="Turn the array into a tensor with torch.as_tensor."
            if type(column).__name__ == "ndarray"
            else "Pass a list with one value per instance, or ps.shared(x) for one value for all.",
        )
    )


def _uneven_columns(counts: dict[int, int]) -> ColumnError:
    facts = [(f"column {number}", f"{count} instances") for number, count in counts.items()]
    return ColumnError(
        report(
            "map: all columns must have the same number of instances.",
            where=user_line(),
            facts=facts or [("columns", "none")],
            todo="Pass columns of one length; ps.shared(x) stands for one value for all instances.",
        )
    )
