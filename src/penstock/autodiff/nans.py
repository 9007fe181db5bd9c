"""The backward halves of launches looked at for NaN: the first row to make one stops the pass.

Rows that were given a NaN are not to blame. What is found here has no line of the user's yet:
`anomalies.py` finds that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.autodiff.page import Page
from penstock.autodiff.way_back import Half
from penstock.run.nans import first_bad_row


class NanFound(Exception):
    """The backward half of a launch has made a NaN for one row, out of these cotangents."""

    def __init__(
        self, page: Page, row: int, pattern: tuple[int, ...], cotangents: list[torch.Tensor]
    ) -> None:
        super().__init__(page.block.name)
        self.page, self.row = page, row
        self.cotangents = dict(zip(pattern, cotangents, strict=True))


def check_half(
    page: Page,
    half: Half,
    cotangents: list[torch.Tensor],
    results: Sequence[torch.Tensor | None],
) -> None:
    """Raise if a half has made a NaN for some row out of cotangents without one."""
    rows = page.rows if half.index is None else len(half.index)
    row = first_bad_row(rows, cotangents, _with_rows(rows, results))
    if row is not None:
        place = row if half.index is None else int(half.index[row])
        raise NanFound(page, place, half.pattern, [c[row] for c in cotangents])


def _with_rows(rows: int, results: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """The results that have a row for each row of the launch."""
    made = [values for values in results if values is not None]
    return [values for values in made if values.dim() and values.shape[0] == rows]
