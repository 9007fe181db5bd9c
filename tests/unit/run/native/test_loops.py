"""Native loops: what is recognised, values and gradients, errors, interrupts, doing without."""

import logging
import os
import signal
import threading
import time

import pytest
import torch

import penstock as ps
from penstock.run.native import choice, compiling
from tests.loop_programs import (
    LOOPS,
    assert_a_loop_without_end_can_be_interrupted,
    assert_same_as_interpreted,
    assert_the_first_division_by_zero_is_named,
    backward_one_by_one,
    doubles,
    is_native,
    relaxation,
    values_and_gradients,
)


@pytest.mark.parametrize("name", LOOPS)
def test_native_code_gives_the_same_as_the_machine(name):
    assert_same_as_interpreted(LOOPS[name])


def test_a_tape_that_grows_over_rows_of_very_different_length():
    loop = LOOPS["rows of very different length"]
    assert_same_as_interpreted(loop._replace(captured=(doubles(0.002)[0],)))


def test_a_branch_that_is_never_taken_sends_no_gradient():
    """0 times inf must not appear: sqrt has no finite derivative at 0."""
    grad = values_and_gradients(LOOPS["a branch that is hardly taken"])[-1]
    assert grad.isfinite().all()


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


def test_gradients_of_gradients_equal_those_of_torch():
    program = relaxation(0.4)
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
    torch.testing.assert_close(*backward_one_by_one())


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
    assert_the_first_division_by_zero_is_named()


@pytest.mark.parametrize("asks", [False, True], ids=["forward", "with a tape"])
def test_a_loop_without_end_can_be_interrupted(asks):
    assert_a_loop_without_end_can_be_interrupted(asks=asks)


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
    loop = LOOPS["trip counts of none, one and many"]
    with caplog.at_level(logging.WARNING, "penstock"):
        without = [values_and_gradients(loop) for _ in range(2)]
    assert [record.message for record in caplog.records] == [
        "loops over scalars are interpreted: pip install 'penstock[native]' compiles them"
    ]
    monkeypatch.undo()
    torch.testing.assert_close(without[0], values_and_gradients(loop))


def test_kernels_are_kept_in_the_folder_that_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    compiling._compiled.cache_clear()
    assert relaxation(0.25)(torch.tensor(0.0), torch.tensor(0.0)) == 0
    (text,) = (tmp_path / "native").glob("loop_*.py")
    assert "def kernel(first, rows, report" in text.read_text()
    assert list((tmp_path / "native").rglob("*.nbc"))


def test_a_folder_that_cannot_be_written_costs_the_cache_only(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    compiling._compiled.cache_clear()
    assert relaxation(0.125)(torch.tensor(0.0), torch.tensor(0.0)) == 0


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
