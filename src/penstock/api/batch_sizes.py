"""The sizes of a batch's arguments: which dimensions differ between instances, which are equal.

Dimensions that have been equal in every instance so far may share a symbol in a trace; where a call
shows them apart, they are apart from then on.
"""

from __future__ import annotations

from collections.abc import Hashable

from penstock.api.batches import Batch
from penstock.capture.traced_tensor import Origins

#: An input dimension, as (input, dimension).
Place = tuple[int, int]


def differing_dimensions(batch: Batch) -> Origins:
    """Dimensions in which the instances differ."""
    return frozenset(
        (number, dimension)
        for number, column in enumerate(batch.inputs)
        for dimension in range(len(column.shapes[0]))
        if len({shape[dimension] for shape in column.shapes}) > 1
    )


def sizes_of(batch: Batch) -> dict[Place, Hashable]:
    """For each dimension something that is equal for dimensions equal in every instance."""
    sizes: dict[Place, Hashable] = {}
    for number, column in enumerate(batch.inputs):
        rows = column.shape_of_row
        for dimension, size in enumerate(column.shapes[0]):
            if rows is None or len({shape[dimension] for shape in column.shapes}) == 1:
                sizes[number, dimension] = size
            else:
                sizes[number, dimension] = tuple(shape[dimension] for shape in rows)
    return sizes


def refined(old: dict[Place, Hashable], new: dict[Place, Hashable]) -> dict[Place, Hashable]:
    """Dimensions stay together only where they were equal before and are now."""
    return {place: hash((old.get(place), size)) for place, size in new.items()}


def numbered(groups: dict[Place, Hashable]) -> dict[Place, int]:
    """For each dimension the number of its group."""
    numbers: dict[Hashable, int] = {}
    return {place: numbers.setdefault(key, len(numbers)) for place, key in groups.items()}
