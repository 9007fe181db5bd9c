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

#: Results up to which each set of them has a number of its own.
FEW = 8
#: Results after which the numbers of groups are made small again, so that 64 bits are enough.
CHUNK = 30


def patterns(
    held: Mapping[int, Mask | None], rows: int, form: Form | None
) -> Iterator[tuple[Pattern, Integers | None]]:
    """The rows with each set of results that have cotangents; None stands for all rows, and for a
    result that no row has a cotangent of.
    """
    masks = {k: mask for k, mask in held.items() if mask is not None}
    widest = tuple(masks)
    if all(np.count_nonzero(mask) == len(mask) for mask in masks.values()):
        yield widest, None
        return
    code, found = _sets(masks, rows)
    groups: dict[Pattern, list[int]] = {}
    for number, pattern in found:
        if pattern:
            is_joined = isinstance(form, TrainingForm) and form.takes_zeros(widest, pattern)
            groups.setdefault(widest if is_joined else pattern, []).append(number)
    if len(groups) == 1 and all(pattern for _, pattern in found):
        yield next(iter(groups)), None
        return
    for pattern, numbers in groups.items():
        is_chosen = np.zeros(found[-1][0] + 1, np.bool_)
        is_chosen[numbers] = True
        yield pattern, np.flatnonzero(is_chosen[code])


def _sets(masks: Mapping[int, Mask], rows: int) -> tuple[Integers, list[tuple[int, Pattern]]]:
    """For each row the number of its set of results, and the sets by number, in order."""
    code = np.zeros(rows, np.int64)
    for position, mask in enumerate(masks.values()):
        if position and position % CHUNK == 0:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * 2 + mask
    if len(masks) <= FEW:  # bits of a number say which: no sorting
        numbers = np.flatnonzero(np.bincount(code)).tolist()
        last = len(masks) - 1
        return code, [
            (n, tuple([k for at, k in enumerate(masks) if n >> (last - at) & 1])) for n in numbers
        ]
    _, example, code = np.unique(code, return_index=True, return_inverse=True)
    sets = [tuple(k for k, mask in masks.items() if mask[row]) for row in example.tolist()]
    return code.reshape(-1), list(enumerate(sets))
