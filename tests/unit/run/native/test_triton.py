"""Loops as Triton kernels, run by Python: the values, gradients and faults of plain Python."""

import pytest
import torch

import penstock as ps
from penstock.errors import DivisionByZeroError
from penstock.run.native import device_block, triton_launching
from penstock.run.native.choice import native_loops
from penstock.run.native.kernels import Kernel, Parameter
from penstock.run.native.triton_compiling import source_of
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WITH_CLOSED_LOOPS, run_map, run_plain
from tests.triton_in_python import triton_in_python
from tests.unit.run.native.test_loops import doubles, make_relaxation
from tests.unit.run.native.test_loops import gradients as values_and_gradients


def fresh(name):
    """A case of the table whose function nobody has called."""
    return PROGRAMS[name].case(torch.float64, seed=17)


@pytest.mark.parametrize("name", WITH_CLOSED_LOOPS)
def test_programs_of_the_table_agree_with_plain_python(name):
    case = fresh(name)
    with torch.no_grad(), triton_in_python():
        actual, expected = run_map(case), run_plain(case)
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(left, right, f"instance {number}")


@pytest.mark.parametrize("name", [n for n in WITH_CLOSED_LOOPS if PROGRAMS[n].differentiable])
def test_gradients_of_the_table_agree_with_plain_python(name):
    case = fresh(name)
    ask_for_gradients(case)
    expected = gradients(case, run_plain(case))
    with triton_in_python():
        actual = gradients(case, run_map(case))
    for path, grad in expected.items():
        assert (actual[path] is None) == (grad is None), path
        if grad is not None:
            assert_agree(actual[path], grad, path)


def assert_same_as_interpreted(make, columns, captured=()):
    """A function that `make` makes gives the same as Triton kernels and in the machine."""
    with triton_in_python():
        device = values_and_gradients(make(), columns, captured)
    with native_loops(False):
        plain = values_and_gradients(make(), columns, captured)
    for left, right in zip((*device[0], *device[1]), (*plain[0], *plain[1]), strict=True):
        assert (left is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def test_rows_of_very_different_length_and_a_captured_rate():
    rate = torch.tensor(0.02, dtype=torch.float64, requires_grad=True)
    columns = doubles(1.0, 0.0, 0.999, -0.5), doubles(1.0, 1.0, 1.0, 1.0)
    assert_same_as_interpreted(make_relaxation(rate), columns, [rate])


def make_nested():
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
                    y = y - (x * 0.3 if x < 0 else x * y)
                j += 1
            x = x + 0.5 * y
        return x

    return program


def test_loops_and_branches_inside_each_other():
    """The adjoint reads what branches have left, and how often their loops have run."""
    columns = doubles(0.3, 1.2, -0.7, 0.9), doubles(0.5, -0.2, 0.4, 1.1), torch.tensor([0, 1, 3, 6])
    assert_same_as_interpreted(make_nested, columns)


def test_small_tensors_and_a_result_that_only_some_rows_reach():
    weight = torch.tensor([0.2, -0.3, 0.4], dtype=torch.float64, requires_grad=True)

    def make():
        @ps.function
        def program(x, y):
            while x.abs().max() > 0.5:
                x = x * 0.8 - weight * x.sum() * 0.1
                y = x * 2
            return x, y.sum()

        return program

    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(program):
        a, b = (x * 0.8).requires_grad_(), x.clone().requires_grad_()
        results = program.map(a, b)
        total = sum(p.sum() + 3 * q for p, q in results)
        return torch.autograd.grad(total, (a, b, weight))

    with triton_in_python():
        device = run(make())
    with native_loops(False):
        plain = run(make())
    torch.testing.assert_close(device, plain, rtol=1e-9, atol=1e-9)


def test_whole_numbers_and_truth_values():
    @ps.function
    def program(n, d, small):
        flag = n > d
        while abs(n) > 3:
            n = n // d
            small = small * 3 % 7 - 5 if flag else -small
            flag = flag < (n > 0)
        return n, small, flag, n % d

    n, d = torch.tensor([100, -100, 2**62, -(2**62), 7]), torch.tensor([-3, 7, 5, -9, 10])
    small = torch.tensor([5, -6, 2**31 - 1, -(2**31), 0], dtype=torch.int32)
    with triton_in_python():
        actual = program.map(n, d, small)
    with ps.set_eager(True):
        expected = [program(*row) for row in zip(n, d, small)]
    for number, (left, right) in enumerate(zip(actual, expected)):
        assert_agree(left, right, f"instance {number}")


def test_a_division_by_zero_is_that_of_the_first_row_that_fails():
    @ps.function
    def program(n, d):
        while n > 0:
            n = n // d - 1  # the division
            d = d - 1
        return n

    with triton_in_python(), pytest.raises(DivisionByZeroError) as caught:
        program.map([1, 100, 3, 50], [5, 1, 3, 1])
    message = str(caught.value)
    assert "instance  1" in message
    assert "test_triton.py" in message
    assert "dividend  99" in message


def test_maximum_iterations_ends_the_loop():
    def make():
        @ps.function
        def program(x):
            return ps.while_loop(lambda x: x < 100, lambda x: x * 1.5 + 1, x, maximum_iterations=4)

        return program

    assert_same_as_interpreted(make, (doubles(0.5, 99.0, 200.0),))


def test_losses_go_backward_one_by_one():
    with triton_in_python():
        program = make_relaxation(0.4)()
        x = doubles(0.2, 0.9, -0.4).requires_grad_()
        for loss in program.map(x, [1.0, 1.0, 0.7]):
            loss.backward()
        one, x.grad = x.grad, None
        program.map(x, [1.0, 1.0, 0.7], out="stack").sum().backward()
    torch.testing.assert_close(one, x.grad)


def test_what_triton_does_not_compile_runs_by_torch_calls_and_one_line_says_so(monkeypatch, caplog):
    def refuse(kernel, device):
        raise RuntimeError("no PTX today")

    rate = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    columns = doubles(1.0, 0.0), doubles(1.0, 1.0)
    device_block._say_what_failed.cache_clear()
    with triton_in_python():
        monkeypatch.setattr(triton_launching, "compile_kernel", refuse)
        without = values_and_gradients(make_relaxation(rate)(), columns, [rate])
        with torch.no_grad():
            make_relaxation(rate)().map(*columns)
    messages = [record.message for record in caplog.records]
    assert messages == [
        "a loop on a CUDA device runs by torch calls, without Triton: RuntimeError: no PTX today"
    ]
    torch.testing.assert_close(
        without, values_and_gradients(make_relaxation(rate)(), columns, [rate])
    )


# ---- the text ------------------------------------------------------------------------------------


def test_a_loop_and_its_adjoint_print_as_short_text(golden):
    @ps.function
    def relax(x, target):
        while (target - x).abs() > 1e-3:
            x = x + 0.5 * torch.sin(target - x)
        return x

    given = torch.tensor([0.0, 0.5], requires_grad=True)
    with triton_in_python() as texts:
        relax.map(given, [1.0, 1.0], out="stack").sum().backward()
    golden("triton_loop", "\n\n".join(texts))


def test_a_module_for_triton_defines_what_kernels_call():
    kernel = Kernel(("    pass",), (Parameter("words", "int64"),), 7)
    source = source_of(kernel)
    compile(source, "module", "exec")
    for line in ("def floor_divide(", "def floor_remainder(", "PULSE = tl.constexpr(7)"):
        assert line in source
    assert "@triton.jit(do_not_specialize=['words'])\ndef kernel(words):\n    pass\n" in source
