"""Gradients of weights that one block reads several times: a term for each, of whatever shape."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

import penstock as ps
from tests.fused import fused_without_compiler

DOUBLE = {"dtype": torch.float64}


def two_products(w, x):
    return torch.tanh(w @ torch.tanh(w @ x))


def a_product_and_its_transpose(w, x):
    return w.t() @ torch.sin(w @ x)


def a_product_and_a_sum(w, x):
    return (w @ x) * w[0]


def sums_of_different_ranks(w, x):
    return torch.tanh(x + w[0]) + (x[None] * w[:2]).sum(0) + (x[None] * w[0]).sum(0)


def vectors_and_matrices(w, x):
    return F.linear(x, w) + F.linear(torch.stack((x, -x)), w).prod(0)


def two_look_ups(w, x):
    number = torch.zeros((), dtype=torch.int64)
    first, other = F.embedding(number, w), F.embedding(number + 2, w, padding_idx=0)
    return torch.tanh(first * x) * other


BODIES = [
    two_products,
    a_product_and_its_transpose,
    a_product_and_a_sum,
    sums_of_different_ranks,
    vectors_and_matrices,
    two_look_ups,
]


@pytest.mark.parametrize("launches", ["plain", "whole"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_terms_add_up(body, launches):
    torch.manual_seed(0)
    weight = torch.randn(4, 4, **DOUBLE, requires_grad=True)
    rows, cotangents = torch.randn(5, 4, **DOUBLE), torch.randn(5, 4, **DOUBLE)
    expected = torch.stack([body(weight, body(weight, row)) for row in rows])
    known = torch.autograd.grad(expected, weight, cotangents)[0]
    program = ps.function(lambda x: body(weight, body(weight, x)))
    with fused_without_compiler() if launches == "whole" else nullcontext():
        actual = program.map(rows, out="stack")
        found = torch.autograd.grad(actual, weight, cotangents)[0]
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(found, known)
