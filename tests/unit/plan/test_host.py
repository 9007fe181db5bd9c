"""Every host operation against torch's eager 0-d result: value, sign of zero, dtype, or refusal."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from penstock.plan.faults import HostOperationError
from penstock.plan.host import HOST_OPS, canonical
from penstock.plan.host_calls import bind
from penstock.plan.host_kernels import NAMESPACE, quiet, read_table
from penstock.plan.host_operation import Emitted, Operand, emit
from penstock.plan.host_types import HOST_DTYPES, constant, constant_name, literal_dtype

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
INF, NAN = float("inf"), float("nan")

# 2**60 + 2**36 + 1 rounds differently to float32 directly and by way of float64.
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 65, -64, 2**24 + 1, 2**53 + 1, 2**60 + 2**36 + 1]
INTS += [INT_MIN, INT_MAX, INT_MIN + 1, 2**31, 3037000500]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.1, 2.5, -7.0, INF, -INF, NAN, 5e-324, -1e-310, 1e-45, 1e40]
DOUBLES += [16777216.0, 16777217.0, 1 + 2**-24, 1 + 2**-23, 2.0**53, 2.0**63, 1.7e308, 3.4e38, 3.0]
SINGLES = [float(np.float32(value)) for value in DOUBLES if abs(value) < 1.5e38 or value != value]
SINGLES += [INF, -INF, 3.4028234663852886e38, 1.1754943508222875e-38, -1.401298464324817e-45]
EDGES: dict[str, list[Any]] = {
    "bool": [False, True],
    "int64": INTS,
    "float32": SINGLES,
    "float64": DOUBLES,
}
LITERALS = ("bool", "int64", "float64")

TORCH: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name) for name in HOST_OPS if hasattr(torch, name)
} | {
    "reciprocal_multiply": lambda tensor, number: number / tensor,
    "to_int64": lambda tensor: tensor.long(),
    "to_bool": lambda tensor: tensor.bool(),
    "to_float32": lambda tensor: tensor.float(),
    "to_float64": lambda tensor: tensor.double(),
}


def _has_float(kinds: Any) -> bool:
    return any(dtype.startswith("float") for dtype, _ in kinds)


def _is_bool(kinds: Any) -> bool:
    return {dtype for dtype, _ in kinds} == {"bool"}


#: What torch computes and the host leaves to a block.
LEFT_OUT: dict[str, Callable[[Any], bool]] = {
    "floor_divide": _has_float,
    "remainder": _has_float,
    "to_int64": _has_float,
    "clamp": lambda kinds: kinds[1][1] != kinds[2][1],
    "clamp_min": _is_bool,
    "clamp_max": _is_bool,
    "reciprocal_multiply": lambda kinds: [literal for _, literal in kinds] != [False, True],
}


@contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_values(dtype: str, count: int, source: random.Random) -> list[Any]:
    if dtype == "bool":
        return [source.random() < 0.5 for _ in range(count)]
    if dtype == "int64":
        return [source.getrandbits(64) >> source.randrange(64) for _ in range(count)]
    bits = np.array([source.getrandbits(64) for _ in range(count)], np.uint64)
    patterns = bits.view(np.float64) if dtype == "float64" else bits.astype(np.uint32).view("f4")
    mild = [float(np.dtype(dtype).type(source.gauss(0, 10))) for _ in range(count)]
    return [*patterns[: count // 2].tolist(), *mild[count // 2 :]]


def operand_rows(kinds: tuple[tuple[str, bool], ...], source: random.Random) -> list[tuple]:
    """All combinations of edge values (a sample where they are many), then random rows."""
    edges = list(itertools.product(*(EDGES[dtype] for dtype, _ in kinds)))
    if len(edges) > 150:
        edges = source.sample(edges, 150)
    columns = [random_values(dtype, 20, source) for dtype, _ in kinds]
    rows = edges + list(zip(*columns, strict=True))
    return [tuple(_wrap(v) if type(v) is int else v for v in row) for row in rows]


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def run_emitted(emitted: Emitted, arrays: dict[str, np.ndarray]) -> np.ndarray:
    with quiet():
        return eval(emitted.source, {**NAMESPACE, **emitted.constants}, arrays)


def torch_results(fn: Callable[..., Any], kinds: Any, rows: list[tuple]) -> list[Any]:
    """torch's 0-d result for each row, or the exception it raised."""
    results: list[Any] = []
    for row in rows:
        operands = [
            value if literal else torch.tensor(value, dtype=getattr(torch, dtype))
            for value, (dtype, literal) in zip(row, kinds, strict=True)
        ]
        try:
            results.append(fn(*operands))
        except Exception as error:
            results.append(error)
    return results


def assert_same_bits(got: np.ndarray, expected: list[torch.Tensor], context: str) -> None:
    want = torch.stack(expected).numpy()
    assert got.dtype == want.dtype, context
    got = np.broadcast_to(got, want.shape)
    same = got == want
    if got.dtype.kind == "f":
        same = (same & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))
    wrong = np.flatnonzero(~same)
    assert not wrong.size, f"{context}: {[(i, got[i], want[i]) for i in wrong[:5]]}"


def check_kinds(name: str, kinds: Any, default: str, source: random.Random) -> None:
    """One operation on one combination of dtypes and literal positions."""
    op = HOST_OPS[name]
    dtypes, literal = zip(*kinds, strict=True)
    rows = operand_rows(kinds, source)
    context = f"{name} {kinds} default {default}"
    if op.result_dtype(dtypes, literal, default) is None:
        results = torch_results(TORCH[name], kinds, rows[-1:])
        assert isinstance(results[0], Exception) or LEFT_OUT[name](kinds), context
        return
    results = torch_results(TORCH[name], kinds, rows)
    groups: dict[tuple, list[int]] = {}
    for position, row in enumerate(rows):
        values = tuple(repr(v) for v, is_literal in zip(row, literal, strict=True) if is_literal)
        groups.setdefault(values, []).append(position)
    for positions in groups.values():
        check_rows(
            op, kinds, default, [rows[p] for p in positions], [results[p] for p in positions]
        )


def check_rows(op: Any, kinds: Any, default: str, rows: list[tuple], results: list[Any]) -> None:
    """Rows that share their literals: one expression, for all rows at once and the first alone."""
    operands: list[Any] = []
    arrays: dict[str, np.ndarray] = {}
    for index, (dtype, literal) in enumerate(kinds):
        arrays[f"x{index}"] = np.array([row[index] for row in rows], dtype)
        operands.append(rows[0][index] if literal else Operand(f"x{index}", dtype))
    emitted = emit(op, operands, default)
    if emitted is None:
        is_nan_bound = op.name == "clamp" and any(value != value for value in rows[0][1:])
        assert is_nan_bound or all(isinstance(result, RuntimeError) for result in results)
        return
    context = f"{op.name} {kinds} {emitted.source}"
    failing = [row for row, result in enumerate(results) if isinstance(result, Exception)]
    if failing:
        with pytest.raises(HostOperationError) as caught:
            run_emitted(emitted, arrays)
        assert caught.value.rows.tolist() == failing, context
        assert all(issubclass(caught.value.fault.error, type(results[row])) for row in failing)
    sound = [row for row in range(len(rows)) if row not in set(failing)]
    if sound:
        expected = [results[row] for row in sound]
        got = run_emitted(emitted, {key: value[sound] for key, value in arrays.items()})
        assert emitted.dtype == got.dtype.name, context
        assert_same_bits(got, expected, context)
        alone = run_emitted(emitted, {key: value[sound[:1]] for key, value in arrays.items()})
        assert_same_bits(alone, expected[:1], context)


@pytest.mark.parametrize("default", ["float32", "float64"])
@pytest.mark.parametrize("name", HOST_OPS)
def test_an_operation_equals_torch_for_every_dtype_and_literal_position(
    name: str, default: str
) -> None:
    tensors = [(dtype, False) for dtype in HOST_DTYPES]
    literals = [(dtype, True) for dtype in LITERALS]
    arity = len(HOST_OPS[name].parameters)
    first = tensors if arity != 2 else tensors + literals
    combinations = itertools.product(first, *[tensors + literals] * (arity - 1))
    source = random.Random(f"{name} {default}")
    with default_dtype(default):
        for kinds in combinations:
            if not all(literal for _, literal in kinds):
                check_kinds(name, kinds, default, source)


def test_evaluate_computes_on_operands_cast_as_resolved() -> None:
    op = HOST_OPS["true_divide"]
    resolution = op.resolve(["int64", "int64"], [False, False], "float32")
    assert resolution == (("float32", "float32"), "float32")
    arrays = [np.array([1, 7]).astype("float32"), np.array([0, 2]).astype("float32")]
    with quiet():
        assert op.evaluate(*arrays).tolist() == [INF, 3.5]


@pytest.mark.parametrize(
    ("name", "operands", "source"),
    [
        ("add", [Operand("i", "int64"), Operand("j", "int64")], "i + j"),
        ("add", [Operand("i * j", "int64"), Operand("j", "int64")], "(i * j) + j"),
        ("lt", [Operand("i", "int64"), 3], "i < int64_0000000000000003"),
        ("floor_divide", [Operand("i", "int64"), 2], "i // int64_0000000000000002"),
        ("floor_divide", [Operand("i", "int64"), Operand("j", "int64")], "floor_divide(i, j)"),
        ("logical_and", [Operand("i", "int64"), Operand("p", "bool")], "(i != 0) & p"),
        ("mul", [Operand("i", "int64"), 0.5], "i.astype(float32) * float32_3f000000"),
        ("to_int64", [Operand("i", "int64")], "i"),
    ],
)
def test_an_emitted_expression_is_as_bare_as_its_dtypes_allow(
    name: str, operands: list[Any], source: str
) -> None:
    emitted = emit(HOST_OPS[name], operands, "float32")
    assert emitted is not None
    assert emitted.source == source


@pytest.mark.parametrize(
    ("name", "dtypes", "literal", "default"),
    [
        ("add", ["int64", "int32"], [False, False], "float32"),
        ("add", ["int64", "float64"], [False, True], "bfloat16"),
        ("true_divide", ["int64", "int64"], [False, False], "float16"),
        ("add", ["int64"], [False], "float32"),
        ("floor_divide", ["float32", "float32"], [False, False], "float32"),
        ("to_int64", ["float64"], [False], "float32"),
    ],
)
def test_what_the_host_cannot_compute_exactly_has_no_result_dtype(
    name: str, dtypes: list[str], literal: list[bool], default: str
) -> None:
    assert HOST_OPS[name].result_dtype(dtypes, literal, default) is None


def test_a_literal_outside_int64_is_not_a_host_literal() -> None:
    assert literal_dtype(2**63) is None
    assert literal_dtype("1") is None
    assert emit(HOST_OPS["add"], [Operand("i", "int64"), 2**63], "float32") is None
    with pytest.raises(TypeError, match="no host constant"):
        constant(2**63, "int64")


def test_constants_are_rounded_once_and_named_by_their_bits() -> None:
    value = 2**60 + 2**36 + 1
    assert constant(value, "float32") == np.float32(2**60 + 2**37)
    assert constant_name(0.0, "float64") != constant_name(-0.0, "float64")


def test_a_division_by_zero_names_its_rows() -> None:
    seven, zero = np.array([7, 7, 7]), np.array([0, 1, 0])
    with pytest.raises(HostOperationError, match=r"divided by zero\. \(rows \[0, 2\]"):
        HOST_OPS["remainder"].evaluate(seven, zero)


def test_a_division_by_the_literal_zero_fails_for_all_rows() -> None:
    emitted = emit(HOST_OPS["floor_divide"], [Operand("i", "int64"), 0], "float32")
    assert emitted is not None
    with pytest.raises(HostOperationError) as caught:
        run_emitted(emitted, {"i": np.arange(3)})
    assert caught.value.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", HOST_DTYPES)
def test_a_table_read_equals_indexing_each_instance(dtype: str) -> None:
    source = np.random.default_rng(0)
    lengths = source.integers(1, 6, 200)
    bases = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    flat = source.integers(0, 2**40, lengths.sum()).astype(dtype)
    index = source.integers(-lengths, lengths)
    expected = [
        torch.from_numpy(flat[base : base + length])[torch.tensor(position)]
        for base, length, position in zip(bases, lengths, index, strict=True)
    ]
    assert_same_bits(read_table(flat, bases, lengths, index), expected, "read_table")


def test_a_table_read_checks_the_bounds_of_each_instance() -> None:
    flat, base = np.arange(10), np.array([0, 3, 3, 7, 0, 0])
    length = np.array([3, 4, 0, 3, 3, 3])
    index = np.array([3, 3, 0, -4, INT_MIN, INT_MAX])
    with pytest.raises(HostOperationError, match="index out of range") as caught:
        read_table(flat, base, length, index)
    assert caught.value.rows.tolist() == [0, 2, 3, 4, 5]
    assert issubclass(caught.value.fault.error, IndexError)
    assert caught.value.fault.facts == (("index", "3"), ("size", "3"))


i, j, p, x = torch.tensor(6), torch.tensor(4), torch.tensor(True), torch.tensor(1.5)
CALLS = """
i + j; i + 1; 1 + i; i - j; i - 1; 1 - i; i * j; 2 * i; i / j; i / 4; 7 / i; 0.3 / x; i // j; 7 // i
i % j; 7 % i; -i; +i; abs(i); ~i; ~p; i & j; 1 & i; i | j; 1 | i; i ^ j; 1 ^ i; i << j; 1 << i
i >> j; 100 >> i; i < j; 1 < i; i <= 1; 1 <= i; i > 1; 1 > i; i >= 1; 1 >= i; i == 1; 1 == i; i != 1
i ** 2; x ** 2; torch.pow(i, 2); torch.add(1, i); torch.add(i, other=j); torch.sub(i, j)
torch.sub(9, i); torch.subtract(i, j); torch.rsub(i, 1); torch.mul(i, j); torch.multiply(i, j)
torch.div(i, j); torch.div(7, i); torch.div(i, j, rounding_mode="floor"); torch.divide(i, j)
torch.div(i, j, rounding_mode=None); torch.true_divide(i, j); torch.floor_divide(i, j)
torch.remainder(i, j); torch.remainder(7, i); torch.neg(i); torch.negative(i); torch.positive(i)
torch.abs(x); torch.absolute(i); torch.square(i); torch.reciprocal(i); torch.eq(i, j)
torch.ne(i, j); torch.not_equal(i, j); torch.lt(i, j); torch.less(i, j); torch.le(i, j)
torch.less_equal(i, j); torch.gt(i, j); torch.greater(i, j); torch.ge(i, j)
torch.greater_equal(i, j); torch.logical_and(i, j); torch.logical_or(i, j)
torch.logical_xor(i, j); torch.logical_not(i); torch.bitwise_and(i, j); torch.bitwise_and(1, i)
torch.bitwise_or(i, j); torch.bitwise_xor(i, j); torch.bitwise_not(i)
torch.bitwise_left_shift(i, j); torch.bitwise_right_shift(i, 1); torch.where(p, i, j)
torch.where(p, i, 1); torch.where(p, 1, 2.5); torch.minimum(i, j); torch.maximum(i, j)
torch.min(i, j); torch.max(i, other=x); torch.clamp(i, 0, 3); torch.clamp(i, min=7)
torch.clamp(i, None, 3); torch.clamp(i, max=j); torch.clip(i, 0, 3); torch.clamp_min(i, 0)
torch.clamp_max(i, 0); torch.clamp(i, j, j)
i.add(j); i.sub(j); i.subtract(j); i.mul(j); i.multiply(j); i.div(j); i.divide(j)
i.true_divide(j); i.floor_divide(j); i.remainder(j); i.neg(); i.negative(); i.positive(); i.abs()
i.absolute(); i.square(); i.pow(2); x.reciprocal(); i.eq(j); i.ne(j); i.not_equal(j); i.lt(j)
i.less(j); i.le(j); i.less_equal(j); i.gt(j); i.greater(j); i.ge(j); i.greater_equal(j)
i.logical_and(j); i.logical_or(j); i.logical_xor(j); i.logical_not(); i.bitwise_and(j)
i.bitwise_or(j); i.bitwise_xor(j); i.bitwise_not(); i.bitwise_left_shift(j)
i.bitwise_right_shift(j); i.where(p, j); i.minimum(j); i.maximum(j); i.min(j); i.max(j)
i.clamp(0, 3); i.clamp(max=3); i.clip(0, 3); i.clamp_min(7); i.clamp_max(3); i.long(); i.bool()
i.float(); i.double(); i.to(torch.float64); i.to(dtype=torch.bool); i.type(torch.float32)
"""
UNBOUND = """
torch.add(i, j, alpha=2); torch.div(i, j, rounding_mode="trunc"); i.min(); i.max(0); i.int()
i.to("cpu"); i.to(torch.int32); i.to(torch.int64, copy=True); i ** 3; 2 ** i; x ** 2.0; i.add_(0)
x.long(); x // 2; torch.fmod(i, j); i.sum(); torch.clamp(i, j, 3)
"""


class CallRecorder(TorchFunctionMode):
    """Keeps the name and arguments of the first call under it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple, dict]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((resolve_name(func), args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def calls_in(text: str) -> list[str]:
    return [call.strip() for line in text.split("\n") for call in line.split(";") if call.strip()]


def run_recorded(expression: str) -> tuple[torch.Tensor, Emitted | None, dict[str, np.ndarray]]:
    with CallRecorder() as recorder:
        expected = eval(expression)
    name, args, kwargs = recorder.calls[0]
    call = bind(name, args, kwargs)
    arrays: dict[str, np.ndarray] = {}
    operands: list[Any] = []
    for index, value in enumerate(call.operands if call else ()):
        if isinstance(value, torch.Tensor):
            arrays[f"x{index}"] = value.numpy().reshape(1)
            value = Operand(f"x{index}", arrays[f"x{index}"].dtype.name)
        operands.append(value)
    return expected, emit(call.op, operands, "float32") if call else None, arrays


@pytest.mark.parametrize("expression", calls_in(CALLS))
def test_a_torch_call_under_its_real_name_becomes_the_host_operation(expression: str) -> None:
    expected, emitted, arrays = run_recorded(expression)
    assert emitted is not None
    assert_same_bits(run_emitted(emitted, arrays), [expected], expression)


@pytest.mark.parametrize("expression", calls_in(UNBOUND))
def test_a_torch_call_outside_the_table_becomes_no_host_operation(expression: str) -> None:
    assert run_recorded(expression)[1] is None


def test_canonical_names_the_operation_and_its_operand_order() -> None:
    assert canonical("torch.Tensor.add") == ("add", False)
    assert canonical("torch.Tensor.__rsub__") == ("sub", True)
    assert canonical("torch.Tensor.add_") is None
    assert canonical("torch.sin") is None


def test_every_spelling_is_a_name_in_torch() -> None:
    for op in HOST_OPS.values():
        both = [f"{owner}.{name}" for name in op.names for owner in ("torch", "torch.Tensor")]
        for spelling in (*both, *op.spellings, *op.reflected):
            eval(spelling)
