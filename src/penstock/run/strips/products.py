"""Matrix products as a BLAS takes them: where a matrix begins, and how far its rows are apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.run.strips.sizes import CONSTANT, Extent, Refused, exact
from penstock.run.strips.stand_ins import ABSENT, View


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """`out = rows @ matrix + bias`."""

    out: View
    rows: View
    matrix: View
    bias: View | None

    @property
    def inner(self) -> tuple[int, int]:
        """The rows and the columns of the matrix."""
        rows, columns = map(_constant, self.matrix.shape)
        return rows, columns

    def words(self) -> tuple[int, ...]:
        """The words of the step."""
        self._check()
        inner, columns = self.inner
        apart, is_turned = self._matrix_lies()
        return (
            self.out.dtype.itemsize,
            *self.out.place,
            _rows_apart(self.out),
            *exact(self.out.shape[0]),
            inner,
            columns,
            *self.rows.place,
            _rows_apart(self.rows),
            *self.matrix.place,
            apart,
            is_turned,
            *self._bias_lies(),
        )

    def _check(self) -> None:
        views = [self.out, self.rows, self.matrix, *([self.bias] if self.bias else [])]
        dtype = self.out.dtype
        if dtype not in (torch.float32, torch.float64) or any(v.dtype != dtype for v in views):
            raise Refused(f"a product of {', '.join(str(view.dtype) for view in views)}")
        if any(len(view.shape) != 2 for view in views[:3]):
            raise Refused("a product of other than two dimensions")
        (count, inner), (matrix_rows, columns) = self.rows.shape, self.matrix.shape
        if not _are(self.out.shape, (count, columns)) or not _are((inner,), (matrix_rows,)):
            raise Refused("a product whose sizes do not fit")

    def _matrix_lies(self) -> tuple[int, int]:
        """How far its rows, or its columns, are apart; and whether it lies turned."""
        inner, columns = self.inner
        down, right = map(_constant, self.matrix.strides)
        if (right == 1 or columns == 1) and (down >= columns or inner == 1):
            return max(down, columns), 0
        if (down == 1 or inner == 1) and (right >= inner or columns == 1):
            return max(right, inner), 1
        raise Refused(f"a product with a matrix of strides {(down, right)}")

    def _bias_lies(self) -> tuple[int, int, int, int]:
        """Where it is, and how far its rows are apart: not at all, where it is the same for all."""
        bias = self.bias
        if bias is None:
            return ABSENT, 0, 0, 0
        count, columns = self.out.shape
        if not _are(bias.strides[-1:], (1,)) or not _are(bias.shape[-1:], (columns,)):
            raise Refused("a product with a bias that has gaps")
        if len(bias.shape) == 1 or _are(bias.shape[:-1], (1,)):
            return *bias.place, 0
        if _are(bias.shape[:-1], (count,)):
            return *bias.place, _constant(bias.strides[0])
        raise Refused("a product with a bias of another size")


def _rows_apart(view: View) -> int:
    """How far the rows of a matrix are apart that has nothing between its columns."""
    columns, apart = _constant(view.shape[1]), view.strides[0]
    if columns > 1 and _constant(view.strides[1]) != 1:
        raise Refused("a product with a matrix whose columns are apart")
    if _constant(apart) < columns:
        raise Refused("a product with a matrix whose rows overlap")
    return _constant(apart)


def _are(some: tuple[Extent, ...], others: tuple[Extent, ...]) -> bool:
    return [exact(one) for one in some] == [exact(other) for other in others]


def _constant(extent: Extent) -> int:
    number, argument = exact(extent)
    if argument != CONSTANT:
        raise Refused("a product whose inner sizes differ from launch to launch")
    return number
