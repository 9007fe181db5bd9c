"""Every operation of native loops equals torch's, in value and in derivative, also at the edges.

Each is compiled by Numba, and printed as Triton and run by Python.
"""

import math
from contextlib import nullcontext

import pytest
import torch

import penstock as ps
from penstock.passes.row_operations import ROW_OPS
from tests.loop_programs import is_native
from tests.triton_in_python import triton_in_python


@pytest.fixture(autouse=True, params=["numba", "triton"])
def language(request):
    """What loops are printed as."""
    with triton_in_python() if request.param == "triton" else nullcontext():
        yield


FLOATS = {
    "add": lambda x, y: x + y,
    "radd": lambda x, y: 2 + x,
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 1.5 - x,
    "mul": lambda x, y: x * y,
    "true_divide": lambda x, y: x / y,
    "reciprocal_multiply": lambda x, y: 3 / x,
    "neg": lambda x, y: -x,
    "positive": lambda x, y: +x,
    "abs": lambda x, y: x.abs(),
    "square": lambda x, y: x.square(),
    "squared": lambda x, y: x**2,
    "cube": lambda x, y: x**3,
    "pow": lambda x, y: x**1.7,
    "pow_tensors": lambda x, y: torch.pow(x, y),
    "exponent": lambda x, y: 2**x,
    "inverse": lambda x, y: x**-1,
    "reciprocal": lambda x, y: x.reciprocal(),
    "sign": lambda x, y: x.sign() * y,
    "sqrt": lambda x, y: x.sqrt(),
    "rsqrt": lambda x, y: x.rsqrt(),
    "exp": lambda x, y: x.exp(),
    "expm1": lambda x, y: x.expm1(),
    "log": lambda x, y: x.log(),
    "log1p": lambda x, y: x.log1p(),
    "log2": lambda x, y: x.log2(),
    "log10": lambda x, y: x.log10(),
    "sin": lambda x, y: x.sin(),
    "cos": lambda x, y: x.cos(),
    "tan": lambda x, y: x.tan(),
    "asin": lambda x, y: x.asin(),
    "acos": lambda x, y: x.acos(),
    "atan": lambda x, y: x.atan(),
    "sinh": lambda x, y: x.sinh(),
    "cosh": lambda x, y: x.cosh(),
    "tanh": lambda x, y: x.tanh(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "erf": lambda x, y: x.erf(),
    "floor": lambda x, y: x.floor() * y,
    "ceil": lambda x, y: x.ceil() * y,
    "trunc": lambda x, y: x.trunc() * y,
    "round": lambda x, y: x.round() * y,
    "relu": lambda x, y: torch.relu(x),
    "silu": lambda x, y: torch.nn.functional.silu(x),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "clamp": lambda x, y: x.clamp(-0.5, 1.0),
    "clamp_min": lambda x, y: x.clamp(min=0.25),
    "clamp_max": lambda x, y: x.clamp(max=0.25),
    "where": lambda x, y: torch.where(x > y, x, 2 * y),
    "clone": lambda x, y: x.clone(),
    "detach": lambda x, y: x.detach() * y,
    "to_float32": lambda x, y: x.float().double() * y.double(),
    "to_float64": lambda x, y: x.double(),
    "zeros_like": lambda x, y: x + torch.zeros_like(x),
}

TRUTHS = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= 0,
    "gt": lambda x, y: x > 1,
    "ge": lambda x, y: x >= y,
    "isnan": lambda x, y: x.isnan(),
    "isinf": lambda x, y: x.isinf(),
    "isfinite": lambda x, y: x.isfinite(),
    "to_bool": lambda x, y: x.bool(),
    "logical_and": lambda x, y: torch.logical_and(x, y),
    "logical_or": lambda x, y: torch.logical_or(x, y),
    "logical_xor": lambda x, y: torch.logical_xor(x, y),
    "logical_not": lambda x, y: torch.logical_not(x),
    "not": lambda x, y: ~(x > y),
}

INTEGERS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y * 1_000_003,
    "floor_divide": lambda x, y: x // 3,
    "floor_divide_negative": lambda x, y: x // -4,
    "div_floor": lambda x, y: torch.div(x, 7, rounding_mode="floor"),
    "remainder": lambda x, y: x % 5,
    "remainder_negative": lambda x, y: x % -5,
    "true_divide": lambda x, y: x / 4,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "square": lambda x, y: x**2,
    "cube": lambda x, y: x**3,
    "sign": lambda x, y: x.sign(),
    "sqrt": lambda x, y: x.abs().sqrt(),
    "maximum": lambda x, y: torch.maximum(x, y),
    "clamp": lambda x, y: x.clamp(-2, 3),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | 6,
    "bitwise_xor": lambda x, y: x ^ y,
    "bitwise_not": lambda x, y: ~x,
    "to_int32": lambda x, y: x.int(),
    "to_int64": lambda x, y: x.long(),
    "of_floats": lambda x, y: x * 0.5,
    "where": lambda x, y: torch.where(x > y, x, 0),
}


def in_a_loop(calls):
    """A function that makes all the calls in the one iteration of a loop."""

    def straight(x, y):
        return tuple(call(x, y) for call in calls)

    @ps.function
    def program(x, y):
        start = tuple(torch.zeros_like(value) for value in straight(x, y))
        _, *results = ps.while_loop(
            lambda i, *_: i < 1, lambda i, *_: (i + 1, *straight(x, y)), (0, *start)
        )
        return tuple(results)

    return program, straight


def pairs(values, dtype):
    x, y = torch.tensor(values, dtype=dtype), torch.tensor(values, dtype=dtype)
    return x.repeat_interleave(len(values)), y.repeat(len(values))


EDGES = [0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 1.7, 30.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("table", [FLOATS, TRUTHS], ids=["floats", "truths"])
def test_values_of_floats_equal_those_of_torch(dtype, table):
    program, straight = in_a_loop(table.values())
    x, y = pairs(EDGES, dtype)
    assert is_native(program, x[0], y[0])
    actual = program.map(x, y, out="stack")
    for name, left, right in zip(table, actual, straight(x, y), strict=True):
        assert left.dtype == right.dtype, name
        torch.testing.assert_close(left, right, equal_nan=True, msg=name)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("table", [INTEGERS, TRUTHS], ids=["integers", "truths"])
def test_values_of_whole_numbers_equal_those_of_torch(dtype, table):
    program, straight = in_a_loop(table.values())
    most = torch.iinfo(dtype).max
    x, y = pairs([0, 1, -1, 2, 7, -9, 1000, most, -most], dtype)
    actual = program.map(x, y, out="stack")
    for name, left, right in zip(table, actual, straight(x, y), strict=True):
        assert left.dtype == right.dtype, name
        torch.testing.assert_close(left, right, msg=name)


#: Operations with kinks: their derivatives are compared at the kinks, too.
KINKS = ("abs", "sign", "relu", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "where")


@pytest.mark.parametrize(
    ("names", "values", "dtype"),
    [
        (FLOATS.keys() - {"asin", "acos"}, [0.3, 0.5, 0.9, 1.7, 2.5], torch.float64),
        (FLOATS.keys() - {"log2"}, [0.3, 0.5, 0.9], torch.float32),
        (KINKS, [0.0, -0.5, 1.0, 0.25, 2.0], torch.float64),
    ],
    ids=["float64", "float32", "kinks"],
)
def test_derivatives_equal_those_of_torch(names, values, dtype):
    calls = [FLOATS[name] for name in sorted(names)]
    program, straight = in_a_loop(calls)
    weights = torch.randn(len(calls), generator=torch.Generator().manual_seed(0)).tolist()
    grads = []
    for run in (straight, lambda *given: program.map(*given, out="stack")):
        given = [value.requires_grad_() for value in pairs(values, dtype)]
        results = zip(weights, run(*given), strict=True)
        total = sum(weight * result.double().sum() for weight, result in results)
        grads.append(torch.autograd.grad(total, given))
    for expected, actual in zip(*grads, strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(actual, expected)


def test_every_operation_of_the_table_is_compared():
    assert ROW_OPS.keys() <= FLOATS.keys() | TRUTHS.keys() | INTEGERS.keys()


REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "amax": lambda x: x.amax(),
    "max": lambda x: x.max(),
    "min": lambda x: torch.min(x),
    "any": lambda x: (x > 1).any().double(),
    "all": lambda x: (x > 1).all().double(),
}


def test_reductions_share_gradients_at_ties_as_torch_does():
    @ps.function
    def program(x):
        _, total = ps.while_loop(
            lambda i, total: i < 2,
            lambda i, total: (i + 1, total * 0.5 + sum(call(x) for call in REDUCTIONS.values())),
            (0, x.sum() * 0),
        )
        return total

    x = torch.tensor([[[1.0, 3.0], [3.0, 3.0]], [[2.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    wanted, given = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = torch.stack(
        [1.5 * sum(call(each) for call in REDUCTIONS.values()) for each in wanted]
    )
    actual = program.map(given, out="stack")
    torch.testing.assert_close(actual, expected)
    expected.sum().backward()
    actual.sum().backward()
    torch.testing.assert_close(given.grad, wanted.grad)
