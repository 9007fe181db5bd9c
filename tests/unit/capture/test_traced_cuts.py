"""Slices with traced bounds: what their sizes are, and which sizes are one."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from penstock.api.function import function
from penstock.api.sequences import foldl, map_fn
from penstock.capture.tensor_array import TensorArray
from penstock.capture.worlds import Worlds
from penstock.errors import SizeError
from penstock.ir.program import TorchCall
from tests.unit.capture.tracing import assert_agrees, entry_of

x5 = torch.arange(10.0).reshape(5, 2) / 3
x3 = torch.arange(6.0).reshape(3, 2) / 2


def cut_shapes(entry) -> list[tuple[int | str, ...]]:
    """The shapes of all slices of the program."""
    return [
        node.outputs[0].type.shape
        for part in entry.program.functions
        for node in part.body.walk()
        if isinstance(node.operation, TorchCall) and node.operation.name.endswith("__getitem__")
    ]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, a, b: (x[a:b], x[b:], x[:a], x[b:a], x[a:], x[:b]),
        lambda x, a, b: x[2:b],
        lambda x, a, b: x[-b:-a],
        lambda x, a, b: x[a:b][a:],
        lambda x, a, b: x[a:][2:],
        lambda x, a, b: (x[a:b][:1], x[b:][-1:], x[b:a][0:1]),
        lambda x, a, b: x[a:b:2],
        lambda x, a, b: x[..., a:b],
        lambda x, a, b: x[:b, a:],
        lambda x, a, b: x[a:b, 0],
        lambda x, a, b: x.t()[:, a:b].reshape(-1),
    ],
)
@pytest.mark.parametrize(("a", "b"), [(1, 3), (0, 4), (3, 1), (2, 2), (4, 9)])
def test_any_bounds_make_a_dynamic_size(fn, a, b) -> None:
    traced = function(fn)
    entry = assert_agrees(traced, x5, a, b)
    assert all(any(isinstance(size, str) for size in shape) for shape in cut_shapes(entry))
    for row, other in zip(traced.map([x5, x3], [a, 1], [b, 2]), (fn(x5, a, b), fn(x3, 1, 2))):
        torch.testing.assert_close(row, other)


def test_one_element_of_an_empty_sequence_is_refused_where_one_was_traced() -> None:
    traced = function(lambda x: (x * 2)[:1])
    with pytest.raises(SizeError, match=r"traced  \[1, 2\]\n  found   \[0, 2\]"):
        traced.map([x5, x3, x5[:0]])
    torch.testing.assert_close(traced.map([x5, x3]), [x5[:1] * 2, x3[:1] * 2])


def test_a_narrowing_beyond_the_end_is_an_error_as_in_torch() -> None:
    traced = function(lambda x: x.narrow(0, 1, 3).sum())
    torch.testing.assert_close(traced.map([x5, x5[1:]]), [x5[1:4].sum(), x5[2:].sum()])
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        traced.map([x5, x3])


def test_equal_bounds_of_equal_dimensions_are_one_size() -> None:
    traced = function(lambda x, n, i: (x[n[i] : n[i + 1]], (x + 1)[n[i] : n[i + 1]]))
    first, second = cut_shapes(entry_of(traced, x5, torch.tensor([1, 3, 4]), 0))
    assert first == second


def test_other_bounds_or_dimensions_are_other_sizes() -> None:
    traced = function(lambda x, y, a, b: (x[:a], x[:b], y[:a], x[a:b], x[a:]))
    sizes = {shape[0] for shape in cut_shapes(entry_of(traced, x5, x3, 2, 3))}
    assert len(sizes) == 5


def test_a_slice_that_the_end_cuts_off_keeps_its_own_length() -> None:
    def fn(x, y, n):
        total = foldl(lambda a, row: a / 2 + row, x[:n] * 2, torch.zeros(2))
        return foldl(lambda a, row: a / 2 + row, y[:n] * 3, total), torch.cat([x[:n], y[:n]])

    traced = function(fn)
    columns = [x5, x5, x3], [x3, x3, x5], [4, 2, 9]
    for found, row in zip(traced.map(*columns), zip(*columns), strict=True):
        torch.testing.assert_close(found, fn(*row))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y, n: x[:n] * y[:n],
        lambda x, y, n: torch.ones(n, 2) + x[:n],
        lambda x, y, n: torch.cat([x[n:], x[:n]]) * x,
        lambda x, y, n: torch.cat([x[:n], x[n : n + 1] * 2, x[n + 1 :]]) * x,
    ],
)
def test_sizes_that_the_bounds_make_equal_meet_in_one_call(fn) -> None:
    traced = function(fn)
    torch.testing.assert_close(traced(x5, x3, 2), fn(x5, x3, 2))
    columns = [x5, x3, x5], [x3, x5, x5], [3, 1, 0]
    for found, row in zip(traced.map(*columns), zip(*columns), strict=True):
        torch.testing.assert_close(found, fn(*row))


def test_lengths_that_differ_after_all_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"broadcast|match"):
        function(lambda x, y, n: x[:n] * y[:n])(x5, x3, 4)
    with pytest.raises(SizeError, match="same length"):
        function(lambda x, y, n: map_fn(lambda pair: pair[0] * pair[1], (x[:n], y[:n])))(x5, x3, 4)


def test_equal_slices_for_all_elements_are_stacked() -> None:
    def fn(x, n):
        return map_fn(lambda i: x[:n] * i, torch.arange(3))

    torch.testing.assert_close(function(fn)(x5, 2), fn(x5, 2))


def test_slices_that_differ_by_element_are_an_array() -> None:
    @function
    def fn(x, n):
        parts = map_fn(lambda i: x[:i], torch.arange(n))
        assert isinstance(parts, TensorArray) or not isinstance(parts, torch.Tensor)
        return parts.read(2)

    torch.testing.assert_close(fn(x5, 4), x5[:2])


def test_no_size_is_another_by_small_sums_and_products() -> None:
    worlds = Worlds()
    numbers = list(islice(worlds._number_pairs, 20))
    pairs = [worlds.sizes[worlds.fresh_symbol()] for _ in range(40)] + numbers
    gaps = [second - first for first, second in pairs]
    assert len(set(gaps)) == len(gaps)
    for factor in (1, 2, 3, 4, 6):
        for first, one in enumerate(gaps):
            assert factor * one not in gaps[:first] + gaps[first + 1 :]
