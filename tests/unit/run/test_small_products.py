"""Products of few rows as native code multiplies them: whatever the sizes, and wherever the rows
lie.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from penstock.run.strips.library import DONE, library
from penstock.run.strips.recorder import PRODUCT
from penstock.run.strips.stand_ins import ABSENT, ARGUMENT, BUFFER

Matrix = npt.NDArray[np.floating]

pytestmark = pytest.mark.skipif(
    library() is None, reason="needs a C++ compiler and a torch whose BLAS can be called"
)

SIZES = (*range(1, 19), 23, 31, 32, 33, 47, 64, 70)
UNTOUCHED = 77.0


def spread(matrix: Matrix, gap: int, first: int) -> Matrix:
    """The matrix with so many elements between its rows, and before it, which are no numbers."""
    rows, columns = matrix.shape
    memory = np.full(first + rows * (columns + gap), np.nan, matrix.dtype)
    found = memory[first:].reshape(rows, columns + gap)
    found[:, :columns] = matrix
    return found


def multiply(
    x: Matrix, w: Matrix, bias: Matrix | None, *, is_turned: bool = False, gap: int = 0
) -> Matrix:
    """`x @ w + bias` by native code; `is_turned`: the columns of `w` lie in its rows."""
    found = library()
    assert found is not None
    (rows, inner), columns = x.shape, w.shape[1]
    xs, ws = spread(x, gap, gap), spread(w.T if is_turned else w, gap, 1)
    out = np.full((rows + 2, columns + gap), UNTOUCHED, x.dtype)
    size = x.dtype.itemsize
    step = [size, BUFFER, 0, 0, columns + gap, 1, 0, inner, columns]
    step += [ARGUMENT, 0, 0, inner + gap, ARGUMENT, 1, 0, ws.shape[1], int(is_turned)]
    step += [ABSENT, 0, 0, 0] if bias is None else [ARGUMENT, 2, 0, 0]
    head = [1, 1, size * (columns + gap), 0, 0]
    words = np.array([*head, PRODUCT, len(step) + 2, *step], np.int64)
    told = [xs.ctypes.data, ws.ctypes.data, 0 if bias is None else bias.ctypes.data]
    sizes = np.array([rows, 0, 0], np.int64)
    scratch = torch.empty(found.scratch_bytes(words, sizes), dtype=torch.uint8)
    results = np.array([out[1:].ctypes.data], np.int64)
    assert found.run_code(words, np.array(told, np.int64), sizes, scratch, results) == DONE
    assert (out[[0, -1]] == UNTOUCHED).all()
    assert (out[:, columns:] == UNTOUCHED).all()
    return out[1:-1, :columns]


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_all_sizes_are_numpys(dtype: type, is_turned: bool) -> None:
    draw = np.random.default_rng(0)
    tolerance = 1e-4 if dtype is np.float32 else 1e-12
    for inner in SIZES:
        for columns in SIZES:
            rows = int(draw.integers(1, 31))
            shapes = (rows, inner), (inner, columns), (columns,)
            x, w, bias = (draw.standard_normal(shape).astype(dtype) for shape in shapes)
            gap, has_bias = int(draw.integers(0, 3)), bool(draw.integers(0, 2))
            found = multiply(x, w, bias if has_bias else None, is_turned=is_turned, gap=gap)
            expected = x.astype(np.float64) @ w + (bias if has_bias else 0)
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("rows", range(1, 31))
def test_products_of_any_number_of_rows_are_numpys(rows: int, is_turned: bool) -> None:
    draw = np.random.default_rng(rows)
    x, w, bias = (draw.standard_normal(shape) for shape in ((rows, 37), (37, 43), (43,)))
    found = multiply(x, w, bias, is_turned=is_turned, gap=1)
    np.testing.assert_allclose(found, x @ w + bias, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("place", [0, 9, 16])
def test_an_infinite_weight_gives_infinity_and_no_nan(place: int, is_turned: bool) -> None:
    x, w = np.ones((3, 17), np.float32), np.ones((17, 17), np.float32)
    w[place, 2] = np.inf
    found = multiply(x, w, None, is_turned=is_turned)
    np.testing.assert_array_equal(found, x @ w)
