"""Loops as Triton kernels, run by Python: the values, gradients and faults of plain Python."""

import pytest
import torch

import penstock as ps
from penstock.run.native import device_block, triton_launching
from penstock.run.native.kernels import Kernel, Parameter
from penstock.run.native.triton_compiling import source_of
from tests.loop_programs import (
    LOOPS,
    assert_same_as_interpreted,
    assert_the_first_division_by_zero_is_named,
    backward_one_by_one,
    relaxation,
    values_and_gradients,
)
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WITH_CLOSED_LOOPS, run_map, run_plain
from tests.triton_in_python import triton_in_python


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


@pytest.mark.parametrize("name", LOOPS)
def test_triton_kernels_give_the_same_as_the_machine(name):
    assert_same_as_interpreted(LOOPS[name], triton_in_python)


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
    with triton_in_python():
        assert_the_first_division_by_zero_is_named()


def test_losses_go_backward_one_by_one():
    with triton_in_python():
        torch.testing.assert_close(*backward_one_by_one())


def test_what_triton_does_not_compile_runs_by_torch_calls_and_one_line_says_so(monkeypatch, caplog):
    def refuse(kernel, device):
        raise RuntimeError("no PTX today")

    loop = LOOPS["trip counts of none, one and many"]
    device_block._say_what_failed.cache_clear()
    with triton_in_python():
        monkeypatch.setattr(triton_launching, "compile_kernel", refuse)
        without = values_and_gradients(loop)
        with torch.no_grad():
            relaxation(0.4).map(*loop.columns)
    messages = [record.message for record in caplog.records]
    assert messages == [
        "a loop on a CUDA device runs by torch calls, without Triton: RuntimeError: no PTX today"
    ]
    torch.testing.assert_close(without, values_and_gradients(loop))


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
