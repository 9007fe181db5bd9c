"""Loops of row-wise arithmetic on a GPU: one Triton program for each row."""

import logging
import signal

import pytest
import torch

import penstock as ps
from penstock.errors import DivisionByZeroError
from penstock.ir.graph import Block
from penstock.run.native import choice
from penstock.run.native.choice import is_closed_loop, native_loops
from tests.unit.run.native.test_operations import EDGES, FLOATS, INTEGERS, TRUTHS, in_a_loop, pairs

pytestmark = pytest.mark.gpu


def is_native(function, *arguments):
    nodes = [n for context in function.graph(*arguments).contexts for n in context.nodes]
    return any(isinstance(n.operation, Block) and is_closed_loop(n.operation) for n in nodes)


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


def make_nested(weight):
    @ps.function
    def program(x, y, n):
        for i in range(n):
            j = 0
            while j < i:
                if x > y:
                    k = 0
                    while k < j:
                        y = torch.tanh(y + 0.2 * x)
                        k += 1
                    x = torch.sin(x * y) + 0.1 * i
                else:
                    y = y - (x * weight if x < 0 else x * y)
                j += 1
            x = x + 0.5 * y
        return x

    return program


@pytest.mark.parametrize("counts_on", ["cpu", "cuda"])
def test_nested_loops_with_branches_equal_those_of_the_machine(counts_on):
    """Counters of the host go to the device with the rest."""
    generator = torch.Generator().manual_seed(5)
    columns = torch.randn(2, 70, generator=generator, dtype=torch.float64).cuda()
    n = torch.randint(0, 9, (70,), generator=generator).to(counts_on)
    weight = torch.tensor(0.3, dtype=torch.float64, device="cuda", requires_grad=True)

    def run():
        given = [column.clone().requires_grad_() for column in columns]
        program = make_nested(weight)
        result = program.map(*given, n, out="stack")
        return result, *torch.autograd.grad((result * columns[0]).sum(), [*given, weight])

    assert is_native(make_nested(weight), *columns[:, 0], n[0])
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
    @ps.function
    def relax(x, target):
        while (target - x).abs() > 1e-3:
            x = x + 0.4 * torch.sin(target - x)
        return x

    found = []
    for device in ("cpu", "cuda"):
        x = torch.tensor([0.2, 1.0, -0.4], dtype=torch.float64, device=device, requires_grad=True)
        target = torch.tensor([1.0, 1.0, 0.7], dtype=torch.float64, device=device)
        result = relax.map(x, target, out="stack")
        (grad,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), x)[0].cpu())
    torch.testing.assert_close(*found)


def test_a_division_by_zero_names_the_first_instance_that_fails_and_the_line():
    @ps.function
    def program(n, d):
        while n > 0:
            n = n // d - 1  # the division
            d = d - 1
        return n

    with pytest.raises(DivisionByZeroError) as caught:
        program.map(*on_cuda(torch.tensor([1, 100, 3, 50]), torch.tensor([5, 1, 3, 1])))
    message = str(caught.value)
    assert "instance  1" in message
    assert "test_native_loops.py" in message
    assert "dividend  99" in message
    assert program.map(*on_cuda(torch.tensor([8]), torch.tensor([3])))[0] == -1


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("asks", [False, True], ids=["forward", "with a tape"])
def test_a_loop_without_end_can_be_interrupted(asks):
    @ps.function
    def program(x, n):
        while n > 0:
            k = n
            while k > 0:
                k, x = k + 1 - 1, x * 0.5 + 1
        return x

    def handle(number, frame):
        raise Interrupted

    x = torch.ones(2, device="cuda", requires_grad=asks)
    n = torch.tensor([0, 1], device="cuda")
    program.map(x, n * 0)  # compiled before the clock runs
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            program.map(x, n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert program.map(x, n * 0) == [1, 1]


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
