"""Products as native code multiplies them: whatever the sizes, and wherever the rows
lie.
"""

from __future__ import annotations

from functools import partial
from itertools import product, repeat
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch

from penstock.run.strips.contraction import turned_product
from penstock.run.strips.library import DONE, FAILED, Library, library
from penstock.run.strips.recorder import PRODUCT
from penstock.run.strips.stand_ins import ABSENT, ARGUMENT, BUFFER

Matrix = npt.NDArray[np.floating]

pytestmark = pytest.mark.skipif(
    library() is None, reason="needs a C++ compiler and a torch whose BLAS can be called"
)

#: Whether many rows are multiplied here, too: not where vectors are short.
IS_FAST = getattr(library(), "is_fast", False)

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
    x: Matrix,
    w: Matrix,
    bias: Matrix | None,
    *,
    is_turned: bool = False,
    gap: int = 0,
    in_pass: int = 0,
) -> Matrix:
    """`x @ w + bias` by native code, in a pass of so many rows; `is_turned`: the columns of `w` lie
    in its rows.
    """
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
    pointers = np.array(told, np.int64)
    assert found.run_code(words, pointers, sizes, scratch, results, in_pass) == DONE
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
            rows, in_pass = int(draw.integers(1, 31)), int(draw.choice([0, 100]))
            shapes = (rows, inner), (inner, columns), (columns,)
            x, w, bias = (draw.standard_normal(shape).astype(dtype) for shape in shapes)
            gap, has_bias = int(draw.integers(0, 3)), bool(draw.integers(0, 2))
            chosen = bias if has_bias else None
            found = multiply(x, w, chosen, is_turned=is_turned, gap=gap, in_pass=in_pass)
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
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("inner", [40, 512, 1200])
def test_large_products_are_numpys(inner: int, threads: int, is_turned: bool) -> None:
    draw = np.random.default_rng(inner)
    x, w, bias = (draw.standard_normal(shape) for shape in ((205, inner), (inner, 75), (75,)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = multiply(x, w, bias, is_turned=is_turned, gap=1)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(found, x @ w + bias, rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(not IS_FAST, reason="short vectors: weight gradients are left to torch")
@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_gradients_are_torchs(dtype: torch.dtype, threads: int) -> None:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows, columns, others in product((1, 5, 700), (1, 7, 200), (16, 17, 40, 75, 130)):
            first = torch.randn(rows, columns + 2, dtype=dtype)[:, 1:-1]
            second = torch.randn(rows, others, dtype=dtype)
            known = torch.randn(columns, others, dtype=dtype)
            expected = first.double().t() @ second.double()
            close = partial(torch.testing.assert_close, check_dtype=False, rtol=1e-4, atol=1e-4)
            close(turned_product(first, second, None), expected)
            total = expected + known
            made = turned_product(first, second, known)
            assert made is known
            close(made, total)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        (torch.ones(3, 4), torch.ones(3, 15), None),
        (torch.ones(3, 4, dtype=torch.half), torch.ones(3, 40, dtype=torch.half), None),
        (torch.ones(4, 3).t(), torch.ones(3, 40), None),
        (torch.ones(3, 4), torch.ones(40, 3).t(), None),
        (torch.ones(3, 4), torch.ones(3, 40), torch.ones(40, 4).t()),
        (torch.ones(3, 4), torch.ones(3, 40).double(), None),
        (torch._neg_view(torch.ones(3, 4)), torch.ones(3, 40), None),
        (torch.ones(0, 4), torch.ones(0, 40), None),
        (torch.ones(1, 4).expand(3, 4), torch.ones(3, 40), None),
        (torch.ones(3, 4, 1), torch.ones(3, 40), None),
    ],
)
def test_what_does_not_lie_plainly_is_left_to_torch(
    first: torch.Tensor, second: torch.Tensor, known: torch.Tensor | None
) -> None:
    assert turned_product(first, second, known) is None


def test_a_pass_packs_a_matrix_once_and_the_next_one_again() -> None:
    """Matrices change between passes, and others may lie where they have lain."""
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((9, 40)), draw.standard_normal((50, 40))
    close = partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)
    for _ in range(3):
        close(multiply(x, w.T, None, is_turned=True), x @ w.T)
        w += 1


def test_a_matrix_that_there_was_no_memory_for_is_not_taken_for_packed() -> None:
    found, inner, columns = library(), 1 << 25, 1 << 25
    assert found is not None
    step = [8, BUFFER, 0, 0, columns, 1, 0, inner, columns]
    step += [ARGUMENT, 0, 0, inner, ARGUMENT, 0, 0, inner, 1, ABSENT, 0, 0, 0]
    words = np.array([1, 1, 0, 0, 0, PRODUCT, len(step) + 2, *step], np.int64)
    nowhere, sizes, scratch = np.zeros(1), np.array([4]), torch.empty(1024, dtype=torch.uint8)
    pointers = np.array([nowhere.ctypes.data], np.int64)
    with patch.object(Library, "_passes", repeat(1 << 40)):  # both in one pass
        for _ in range(2):
            assert found.run_code(words, pointers, sizes, scratch, pointers) == FAILED


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("place", [0, 9, 16])
def test_an_infinite_weight_gives_infinity_and_no_nan(place: int, is_turned: bool) -> None:
    x, w = np.ones((3, 17), np.float32), np.ones((17, 17), np.float32)
    w[place, 2] = np.inf
    found = multiply(x, w, None, is_turned=is_turned)
    np.testing.assert_array_equal(found, x @ w)
