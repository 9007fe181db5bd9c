"""The rows of a launch, grouped by which of its results have cotangents.

Each group goes backward by itself, because no cotangent is not a zero one. Rows whose missing
cotangents are only ever added to others go with the widest group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from penstock.autodiff.forms import Form
from penstock.autodiff.joint import Pattern, TrainingForm
from penstock.plan.schedule import Integers

#: Which rows have the cotangent of a result.
Mask = npt.NDArray[np.bool_]

#: Results after which the numbers of groups are made small again, so that 64 bits are enough.
CHUNK = 30


def patterns(
    held: Mapping[int, Mask | None], rows: int, form: Form | None
) -> Iterator[tuple[Pattern, Integers | None]]:
    """The rows with each set of results that have cotangents; None stands for all rows, and for a
    result that no row has a cotangent of.
    """
    masks = {k: mask for k, mask in held.items() if mask is not None}
    if all(mask.all() for mask in masks.values()):
        yield tuple(masks), None
        return
    widest = tuple(masks)
    code = _codes(masks, rows)
    groups: dict[Pattern, list[int]] = {}
    for number, row in zip(*np.unique(code, return_index=True), strict=True):
        pattern = tuple(k for k, mask in masks.items() if mask[row])
        if pattern:
            is_joined = isinstance(form, TrainingForm) and form.takes_zeros(widest, pattern)
            groups.setdefault(widest if is_joined else pattern, []).append(number)
    for pattern, numbers in groups.items():
        chosen = code == numbers[0] if len(numbers) == 1 else np.isin(code, numbers)
        yield pattern, None if chosen.all() else np.flatnonzero(chosen)


def _codes(masks: Mapping[int, Mask], rows: int) -> Integers:
    """A number for each row, the same for rows with the same results."""
    code = np.zeros(rows, np.int64)
    for position, mask in enumerate(masks.values()):
        if position and position % CHUNK == 0:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * 2 + mask
    return code
