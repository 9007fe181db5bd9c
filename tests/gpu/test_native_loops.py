"""Loops of row-wise arithmetic on a GPU: one Triton program for each row."""

import logging

import pytest
import torch

import penstock as ps
from penstock.run.native import choice
from penstock.run.native.choice import native_loops
from tests.loop_programs import (
    LOOPS,
    assert_a_loop_without_end_can_be_interrupted,
    assert_same_as_interpreted,
    assert_the_first_division_by_zero_is_named,
    backward_one_by_one,
    is_native,
    loop_in_a_branch,
    relaxation,
)
from tests.unit.run.native.test_operations import EDGES, FLOATS, INTEGERS, TRUTHS, in_a_loop, pairs

pytestmark = pytest.mark.gpu


def on_cuda(*columns):
    return [column.cuda() for column in columns]


CALLS = [(FLOATS, torch.float32), (FLOATS, torch.float64), (TRUTHS, torch.float32)]
CALLS += [(table, dtype) for table in (INTEGERS, TRUTHS) for dtype in (torch.int32, torch.int64)]


@pytest.mark.parametrize(("table", "dtype"), CALLS)
def test_values_of_every_operation_are_those_of_torch_on_the_same_device(table, dtype):
    program, straight = in_a_loop(table.values())
    if dtype.is_floating_point:
        x, y = on_cuda(*pairs(EDGES, dtype))
    else:
        most = torch.iinfo(dtype).max
        x, y = on_cuda(*pairs([0, 1, -1, 2, 7, -9, 1000, most, -most], dtype))
    assert is_native(program, x[0], y[0])
    actual = program.map(x, y, out="stack")
    for name, left, right in zip(table, actual, straight(x, y), strict=True):
        assert left.dtype == right.dtype, name
        torch.testing.assert_close(left, right, equal_nan=True, msg=name)
        if name in ("neg", "add", "mul", "true_divide", "sqrt", "floor", "round"):
            same = (left == right) & (left.double().signbit() == right.double().signbit())
            assert (same | (left != left)).all(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_every_operation_are_those_of_torch(dtype):
    calls = [FLOATS[name] for name in sorted(FLOATS.keys() - {"log2"})]
    program, straight = in_a_loop(calls)
    weights = torch.randn(len(calls), generator=torch.Generator().manual_seed(0)).tolist()
    grads = []
    for run in (straight, lambda *given: program.map(*given, out="stack")):
        given = [value.requires_grad_() for value in on_cuda(*pairs([0.3, 0.5, 0.9], dtype))]
        results = zip(weights, run(*given), strict=True)
        total = sum(weight * result.double().sum() for weight, result in results)
        grads.append(torch.autograd.grad(total, given))
    for expected, actual in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", LOOPS)
def test_kernels_give_the_same_as_the_machine(name):
    assert_same_as_interpreted(LOOPS[name], device="cuda")


def test_many_rows_and_counters_of_the_host_go_to_the_device():
    generator = torch.Generator().manual_seed(5)
    columns = torch.randn(2, 70, generator=generator, dtype=torch.float64).cuda()
    n = torch.randint(0, 9, (70,), generator=generator)
    weight = torch.tensor(0.3, dtype=torch.float64, device="cuda", requires_grad=True)

    def run():
        given = [column.clone().requires_grad_() for column in columns]
        program = loop_in_a_branch(weight)
        result = program.map(*given, n, out="stack")
        return result, *torch.autograd.grad((result * columns[0]).sum(), [*given, weight])

    assert is_native(loop_in_a_branch(weight), *columns[:, 0], n[0])
    native = run()
    with native_loops(False):
        plain = run()
    torch.testing.assert_close(native, plain, rtol=1e-9, atol=1e-9)


@ps.function
def collatz(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count = count + 1
    return count


def test_many_rows_each_make_their_own_number_of_iterations():
    n = torch.arange(1, 5001)
    expected = collatz.map(n, out="stack")
    actual = collatz.map(n.cuda(), out="stack")
    assert torch.equal(actual.cpu(), expected)


def test_gradients_of_gradients_equal_those_on_the_cpu():
    relax, found = relaxation(0.4), []
    for device in ("cpu", "cuda"):
        x = torch.tensor([0.2, 1.0, -0.4], dtype=torch.float64, device=device, requires_grad=True)
        target = torch.tensor([1.0, 1.0, 0.7], dtype=torch.float64, device=device)
        result = relax.map(x, target, out="stack")
        (grad,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), x)[0].cpu())
    torch.testing.assert_close(*found)


def test_losses_go_backward_one_by_one():
    torch.testing.assert_close(*backward_one_by_one("cuda"))


def test_a_division_by_zero_names_the_first_instance_that_fails_and_the_line():
    assert_the_first_division_by_zero_is_named("cuda")


@pytest.mark.parametrize("asks", [False, True], ids=["forward", "with a tape"])
def test_a_loop_without_end_can_be_interrupted(asks):
    assert_a_loop_without_end_can_be_interrupted(asks=asks, device="cuda")


def test_calls_that_repeat_are_not_captured_and_stay_right():
    """Plans that repeat become CUDA graphs, but a loop on the device is waited for."""
    for k in range(12):
        n = torch.arange(1 + k, 9 + k, device="cuda")
        assert torch.equal(collatz.map(n, out="stack"), collatz.map(n.cpu(), out="stack"))


def test_without_triton_loops_run_as_before_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(choice, "has_triton", lambda: False)
    choice._say_what_is_missing.cache_clear()

    @ps.function
    def program(x, limit):
        while x < limit:
            x = x * 2
        return x

    with caplog.at_level(logging.WARNING, "penstock"):
        x, limit = torch.tensor(1.0, device="cuda"), torch.tensor(9.0, device="cuda")
        assert program(x, limit) == 16
        assert not is_native(program, x, limit)
    assert [record.message for record in caplog.records] == [
        "loops over scalars on CUDA devices are interpreted: pip install triton compiles them"
    ]
