"""Native loops: what is recognised, values and gradients, errors, interrupts, doing without."""

import logging
import os
import signal
import threading
import time

import pytest
import torch

import penstock as ps
from penstock.errors import DivisionByZeroError
from penstock.ir.graph import Block
from penstock.run.native import choice, compiling
from penstock.run.native.choice import is_closed_loop, native_loops


def is_native(function, *arguments):
    """Whether some loop of the program runs as native code."""
    nodes = [n for context in function.graph(*arguments).contexts for n in context.nodes]
    return any(isinstance(n.operation, Block) and is_closed_loop(n.operation) for n in nodes)


def gradients(fn, columns, captured=()):
    """Values and gradients of a mapped function; None where there is none."""
    given = [
        column.clone().requires_grad_() if column.is_floating_point() else column
        for column in columns
    ]
    wanted = [column for column in given if column.requires_grad] + list(captured)
    results = fn.map(*given)
    weights = torch.linspace(0.3, 1.7, len(results), dtype=torch.float64)
    total = sum(weight * result.double().sum() for weight, result in zip(weights, results))
    return results, torch.autograd.grad(total, wanted, allow_unused=True)


def assert_same_either_way(make, columns, captured=()):
    """A function that `make` makes gives the same as native code and in the machine."""
    assert is_native(make(), *[column[0] for column in columns])
    native = gradients(make(), columns, captured)
    with native_loops(False):
        plain = gradients(make(), columns, captured)
    for left, right in zip((*native[0], *native[1]), (*plain[0], *plain[1]), strict=True):
        assert (left is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def make_relaxation(rate):
    def make():
        @ps.function
        def relax(x, target):
            while (target - x).abs() > 1e-3:
                x = x + rate * torch.sin(target - x)
            return x

        return relax

    return make


def test_trip_counts_of_none_one_and_many():
    rate = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    columns = doubles(1.0, 1.0005, 0.0, -1.5, 1.0), doubles(1.0, 1.002, 1.0, 1.0, 1.0)
    assert_same_either_way(make_relaxation(rate), columns, [rate])


def test_rows_of_very_different_length_and_a_tape_that_grows():
    rate = torch.tensor(0.002, dtype=torch.float64, requires_grad=True)
    columns = doubles(1.0, 0.0, 0.999, -0.5), doubles(1.0, 1.0, 1.0, 1.0)
    assert_same_either_way(make_relaxation(rate), columns, [rate])


def test_nested_loops_with_branches_inside():
    def make():
        @ps.function
        def program(x, y, n):
            for i in range(n):
                j = 0
                while j < i:
                    if x > y:
                        x = torch.sin(x * y) + 0.1 * i
                    else:
                        y = y - x * 0.3
                    k = 0
                    while k < j:
                        y = torch.tanh(y + 0.2 * x)
                        k += 1
                    j += 1
                x = x + 0.5 * y
            return x

        return program

    columns = doubles(0.3, 1.2, -0.7, 0.9), doubles(0.5, -0.2, 0.4, 1.1), torch.tensor([0, 1, 3, 6])
    assert_same_either_way(make, columns)


def test_a_branch_that_is_never_taken_sends_no_gradient():
    """0 times inf must not appear: sqrt has no finite derivative at 0."""

    def make():
        @ps.function
        def program(x, n):
            root = torch.sqrt(x)
            total = x * 3
            i = 0
            while i < n:
                total = total + (root if n > 1 else total)
                i += 1
            return total

        return program

    (_, (grad, *_)) = gradients(make(), (doubles(0.0, 0.0, 4.0), torch.tensor([0, 1, 2])))
    assert grad.isfinite().all()
    assert_same_either_way(make, (doubles(0.0, 0.0, 4.0), torch.tensor([0, 1, 2])))


def test_a_result_without_cotangent_is_not_one_with_a_zero_cotangent():
    def make():
        @ps.function
        def program(x, n):
            a, b, i = x, x * 0, 0
            while i < n:
                a, b, i = a * 2, torch.sqrt(b), i + 1
            return a, b

        return program

    given = doubles(1.0, 2.0).requires_grad_()
    a, _ = make().map(given, torch.tensor([1, 3]), out="stack")
    a.sum().backward()
    assert given.grad.tolist() == [2.0, 8.0]


def test_small_tensors_broadcast_and_reduce():
    weight = torch.tensor([0.2, -0.3, 0.4], dtype=torch.float64, requires_grad=True)

    def make():
        @ps.function
        def program(x):
            while x.abs().max() > 0.1:
                x = x * 0.8 - weight * x.sum() * 0.1
            return x

        return program

    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_same_either_way(make, (x,), [weight])


def test_maximum_iterations_ends_the_loop():
    def make():
        @ps.function
        def program(x):
            return ps.while_loop(lambda x: x < 100, lambda x: x * 1.5 + 1, x, maximum_iterations=4)

        return program

    assert_same_either_way(make, (doubles(0.5, 99.0, 200.0),))


def test_gradients_of_gradients_equal_those_of_torch():
    program = make_relaxation(0.4)()
    x, target = doubles(0.2, 1.0, -0.4).requires_grad_(), doubles(1.0, 1.0, 0.7).requires_grad_()
    (grad,) = torch.autograd.grad(
        program.map(x, target, out="stack").square().sum(), x, create_graph=True
    )
    actual = torch.autograd.grad(grad.square().sum(), (x, target))
    results = []
    for a, b in zip(x, target):
        while (b - a).abs() > 1e-3:
            a = a + 0.4 * torch.sin(b - a)
        results.append(a)
    total = torch.stack(results).square().sum()
    (grad,) = torch.autograd.grad(total, x, create_graph=True)
    for left, right in zip(actual, torch.autograd.grad(grad.square().sum(), (x, target))):
        torch.testing.assert_close(left, right)


def test_losses_go_backward_one_by_one():
    program = make_relaxation(0.4)()
    x = doubles(0.2, 0.9, -0.4).requires_grad_()
    for loss in program.map(x, [1.0, 1.0, 0.7]):
        loss.backward()
    one = x.grad.clone()
    x.grad = None
    program.map(x, [1.0, 1.0, 0.7], out="stack").sum().backward()
    torch.testing.assert_close(one, x.grad)


# ---- recognition ---------------------------------------------------------------------------------


def test_a_loop_that_steers_the_rest_of_the_program_stays_with_the_planner():
    @ps.function
    def program(x, n):
        m = 0
        while n > 0:
            n, m = n // 2, m + 1
        for _ in range(m):
            x = x @ x
        return x

    assert not is_native(program, torch.eye(2), 5)
    assert program(2 * torch.eye(2), 4)[0, 0] == 2**8


def test_a_loop_that_only_steers_native_loops_is_native():
    @ps.function
    def program(x, n):
        m = 0
        while n > 0:
            n, m = n // 2, m + 1
        for _ in range(m):
            x = x * 2
        return x

    assert str(program.graph(torch.tensor(1.0), 5)).count("row_loop") == 2
    assert program.map([1.0, 1.0], [0, 4]) == [1.0, 8.0]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x @ torch.eye(3),
        lambda x: x + torch.rand(()),
        lambda x: x.sort().values,
        lambda x: x.to(torch.float16).float(),
    ],
    ids=["products", "random numbers", "other operations", "other dtypes"],
)
def test_other_loops_stay_as_they_are(step):
    @ps.function
    def program(x, n):
        for _ in range(n):
            x = step(x)
        return x

    assert not is_native(program, torch.randn(3), 2)
    program(torch.randn(3), 2)


def test_large_tensors_stay_as_they_are():
    @ps.function
    def program(x, n):
        for _ in range(n):
            x = x * 2
        return x

    assert is_native(program, torch.randn(16), 2)
    assert not is_native(program, torch.randn(17), 2)


# ---- errors and interrupts -----------------------------------------------------------------------


def test_a_division_by_zero_names_the_instance_and_the_line():
    @ps.function
    def program(n, d):
        while n > 0:
            n = n // d - 1  # the division
            d = d - 1
        return n

    with pytest.raises(DivisionByZeroError) as caught:
        program.map([1, 100, 3], [5, 1, 3])
    message = str(caught.value)
    assert "instance  1" in message
    assert "test_loops.py" in message
    assert "dividend  99" in message


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("asks", [False, True], ids=["forward", "with a tape"])
def test_a_loop_without_end_can_be_interrupted(asks):
    """A handler of a signal runs during the loop, and what it raises ends it."""

    @ps.function
    def program(x, n):
        while n > 0:
            k = n
            while k > 0:
                k, x = k + 1 - 1, x * 0.5 + 1
        return x

    def handle(number, frame):
        raise Interrupted

    x = torch.ones(2, requires_grad=asks)
    program.map(x, [0, 0])  # compiled before the clock runs
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            program.map(x, [0, 1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert program.map(x, [0, 0]) == [1, 1]


def test_ctrl_c_ends_a_loop():
    @ps.function
    def program(n):
        while n > 0:
            n = n + 1 - 1
        return n

    program(0)

    def press():
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers may ignore it
    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            program(1)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


# ---- without a compiler, without a disk ----------------------------------------------------------


def test_without_numba_the_results_are_the_same_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(choice, "has_numba", lambda: False)
    choice._say_what_is_missing.cache_clear()
    rate = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    columns = doubles(1.0, 0.0), doubles(1.0, 1.0)
    with caplog.at_level(logging.WARNING, "penstock"):
        without = [gradients(make_relaxation(rate)(), columns, [rate]) for _ in range(2)]
    assert [record.message for record in caplog.records] == [
        "loops over scalars are interpreted: pip install 'penstock[native]' compiles them"
    ]
    monkeypatch.undo()
    native = gradients(make_relaxation(rate)(), columns, [rate])
    torch.testing.assert_close(without[0], native)


def test_kernels_are_kept_in_the_folder_that_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    compiling._compiled.cache_clear()
    assert make_relaxation(0.25)()(torch.tensor(0.0), torch.tensor(0.0)) == 0
    (text,) = (tmp_path / "native").glob("loop_*.py")
    assert "def kernel(first, rows, report" in text.read_text()
    assert list((tmp_path / "native").rglob("*.nbc"))


def test_a_folder_that_cannot_be_written_costs_the_cache_only(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    compiling._compiled.cache_clear()
    assert make_relaxation(0.125)()(torch.tensor(0.0), torch.tensor(0.0)) == 0


def test_a_closed_loop_prints_as_its_program_does():
    from penstock.ir.printer import print_program
    from penstock.passes.flow import analyse_flow
    from penstock.passes.row_loops import close_row_loops
    from penstock.passes.slicing import slice_control

    @ps.function
    def program(x, n):
        for _ in range(n):
            x = x * 0.5
        return x

    flow = analyse_flow(program.program(torch.tensor(1.0), 3))
    text = print_program(close_row_loops(flow, slice_control(flow, "float32"), ["cpu"]))
    assert "row_loop(" in text
    assert "torch.Tensor.mul" in text
