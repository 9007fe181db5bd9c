"""Blocks with dynamic dimensions: one form for all sizes, or one for each."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from penstock.run.batched import BatchedBlock, BlockInput, build_batched
from penstock.run.batched.block import MAXIMUM_FORMS
from penstock.run.batched.sizes import Polynomial, add, fit, multiply, symbol


def row(*shape, dtype="float32"):
    return BlockInput("row", dtype, shape)


def uniform(*shape, dtype="float32"):
    return BlockInput("uniform", dtype, shape)


def size(name):
    return BlockInput("size", "int64", (), symbol=name)


def assert_agrees(block: BatchedBlock, function, inputs, sizes, rows_choices=(1, 2, 7)):
    generator = torch.Generator().manual_seed(3)
    for rows in rows_choices:
        arguments = []
        for spec in inputs:
            if spec.kind == "size":
                arguments.append(sizes[spec.symbol])
                continue
            shape = [sizes.get(s, s) for s in spec.shape]
            shape = [rows, *shape] if spec.kind == "row" else shape
            if spec.dtype == "int64":
                arguments.append(torch.randint(0, 2, shape, generator=generator))
            else:
                arguments.append(torch.randn(shape, generator=generator).to(spec.torch_dtype))
        actual = block(rows, *arguments)
        for i in range(rows):
            picked = [
                a[i] if s.kind == "row" else a for a, s in zip(arguments, inputs, strict=True)
            ]
            for left, right in zip(actual, function(*picked), strict=True):
                torch.testing.assert_close(left[i], right, rtol=1e-4, atol=1e-5, equal_nan=True)


GENERAL = {
    "linear over a sequence": (
        [uniform(3, 4), uniform(3), row("n", 4)],
        lambda w, b, x: (F.linear(x, w, b).relu(),),
    ),
    "mean by hand": ([row("n", 4)], lambda x: (x.sum(0) / x.shape[0], x.mean(0))),
    "inverse of the length": ([row("n")], lambda x: (x * (1.0 / x.shape[0]), x * float(len(x)))),
    "attention over a source": (
        [row(4), row("n", 4)],
        lambda q, k: ((k @ q).softmax(0) @ k,),
    ),
    "self attention": (
        [row(2, "n", 4)],
        lambda x: (F.scaled_dot_product_attention(x, x, x, is_causal=True),),
    ),
    "one longer": (
        [uniform(3, 4), row("n", 4), row(4)],
        lambda w, x, y: (torch.cat([x, y[None]]) @ w.t(), F.pad(x, (0, 0, 2, 1))),
    ),
    "two lengths": (
        [row("n", 4), row("m", 4), uniform(4, 5)],
        lambda x, y, w: (x @ y.t(), torch.cat([x, y]) @ w, (x[:, None] * y[None]) @ w),
    ),
    "a size as a number": (
        [size("n"), row(4)],
        lambda n, x: (torch.arange(n), x * n, torch.zeros(n, 4) + x, x.repeat(n)),
    ),
    "a size shared with a shape": (
        [size("n"), row("n", 2)],
        lambda n, x: (x * torch.arange(n)[:, None], x.reshape(2 * n)),
    ),
    "all but the first": ([row("n", 3)], lambda x: (x[1:], x[-1], x[:-1], x.flip(0), x[-2:])),
    "square": ([row("n")], lambda x: (torch.outer(x, x).flatten(), torch.eye(len(x)))),
    "loss over a sequence": (
        [row("n", 4), row("n", dtype="int64")],
        lambda x, y: (F.cross_entropy(x, y),),
    ),
    "convolution wider than small sizes": (
        [uniform(2, 3, 9), row(3, "n")],
        lambda w, x: (F.conv1d(x, w),),
    ),
    "a uniform length": ([uniform("n", 4), row(4)], lambda k, q: ((k @ q).softmax(0) @ k,)),
}


@pytest.mark.parametrize("name", GENERAL)
def test_one_form_serves_all_sizes(name):
    inputs, function = GENERAL[name]
    block = build_batched(function, inputs, name=name)
    assert block.is_general
    assert block.unbatched == ()
    least = 9 if "convolution" in name else 1
    for n in (least, least + 1, least + 9):
        assert_agrees(block, function, inputs, {"n": n, "m": n + 2})


def test_sizes_zero_and_one_have_their_own_forms():
    inputs = [row("n", 3)]

    def function(x):
        return (x.squeeze(0).sum(-1), x.sum(0))

    block = build_batched(function, inputs, name="squeeze")
    for n in (0, 1, 2, 5):
        assert_agrees(block, function, inputs, {"n": n})


SPECIAL = {
    "half": ([row("n", 3)], lambda x: (x[: x.shape[0] // 2], x.sum(0))),
    "stride": ([row("n", 3)], lambda x: (x[::2],)),
    "unrolled": ([row("n", 3)], lambda x: (sum(x[i] * i for i in range(x.shape[0])),)),
    "at most three": ([row("n", 3)], lambda x: (x.sum(0) * min(3, x.shape[0]),)),
    "square root of a size": ([row("n", 3)], lambda x: (x / x.shape[0] ** 0.5,)),
    "other code for short ones": (
        [row("n", 3)],
        lambda x: (x.sum(0) if x.shape[0] > 3 else x.mean(0),),
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_code_that_no_polynomial_describes_has_a_form_for_each_size(name):
    inputs, function = SPECIAL[name]
    block = build_batched(function, inputs, name=name)
    assert not block.is_general
    for n in (1, 2, 3, 4, 9):
        assert_agrees(block, function, inputs, {"n": n}, rows_choices=(1, 4))
    assert block.unbatched == ()


def test_forms_for_particular_sizes_are_bounded():
    inputs, function = SPECIAL["stride"]
    block = build_batched(function, inputs, name="stride", check=False)
    for n in range(2, MAXIMUM_FORMS + 6):
        block(1, torch.zeros(1, n, 3))
    assert len(block._forms) == MAXIMUM_FORMS


def test_a_form_for_one_size_does_not_hide_the_general_text():
    block = build_batched(lambda x: (x.sum(0),), [row("n", 3)], name="sum")
    text = block.source
    block(1, torch.zeros(1, 1, 3))
    assert block.source == text


def test_an_operation_without_a_rule_is_reported_once_for_all_sizes(recwarn):
    block = build_batched(lambda x: (x.histc(4),), [row("n")], name="histogram")
    for n in (0, 1, 2, 5):
        block(2, torch.ones(2, n))
    assert len(recwarn) == 1
    assert block.unbatched == ("histc",)


def test_a_position_table_shorter_than_large_sizes_is_no_obstacle():
    table = torch.randn(8, 4)
    inputs = [row("n", 4)]
    block = build_batched(lambda x: (x + table[: x.shape[0]],), inputs, name="positions")
    assert_agrees(block, lambda x: (x + table[: x.shape[0]],), inputs, {"n": 8})


def test_polynomials_compare_and_print_in_one_form():
    n, m = symbol("n"), symbol("m")
    assert multiply(n, add(m, 1)) == add(n, multiply(m, n))
    assert str(multiply(3, n, m)) == "3 * m * n"
    assert add(n, multiply(-1, n)) == 0
    assert multiply() == 1


POINTS = [{"N": 5, "n": 4}, {"N": 8, "n": 4}, {"N": 5, "n": 7}, {"N": 3, "n": 6}]


@pytest.mark.parametrize(
    "form",
    [
        lambda N, n: N,
        lambda N, n: 12 * N * n,
        lambda N, n: N * (n + 1),
        lambda N, n: 2 * n - 3,
        lambda N, n: N * N,
        lambda N, n: N + 2 * n + 1,
        lambda N, n: n * n * N,
        lambda N, n: 6,
    ],
)
def test_a_product_of_symbols_and_an_affine_form_is_found(form):
    found = fit([form(**point) for point in POINTS], POINTS)
    assert found is not None
    new = {"N": 13, "n": 17}
    assert (found.at(new) if isinstance(found, Polynomial) else found) == form(**new)


@pytest.mark.parametrize("form", [lambda N, n: n // 2, lambda N, n: min(n, 5), lambda N, n: 2**n])
def test_what_is_no_polynomial_is_not_found(form):
    assert fit([form(**point) for point in POINTS], POINTS) is None
