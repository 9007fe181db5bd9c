"""Programs of the table on a GPU: the values and gradients of plain Python on the CPU."""

import pytest
import torch

from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import run_map, run_plain

pytestmark = pytest.mark.gpu

FLOATING = [name for name, program in PROGRAMS.items() if torch.float64 in program.dtypes]


def on_cpu(value):
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, value
    )


@pytest.mark.parametrize("name", FLOATING)
def test_values_agree_with_plain_python_on_the_cpu(name):
    with torch.no_grad():
        expected = run_plain(PROGRAMS[name].case(torch.float64))
        actual = run_map(PROGRAMS[name].case(torch.float64, device="cuda"))
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(on_cpu(left), right, f"instance {number}")


@pytest.mark.parametrize("name", [n for n in FLOATING if PROGRAMS[n].differentiable])
def test_gradients_agree_with_plain_python_on_the_cpu(name):
    plain = PROGRAMS[name].case(torch.float64)
    mapped = PROGRAMS[name].case(torch.float64, device="cuda")
    ask_for_gradients(plain)
    ask_for_gradients(mapped)
    expected = gradients(plain, run_plain(plain))
    actual = gradients(mapped, run_map(mapped))
    for path, grad in expected.items():
        assert (actual[path] is None) == (grad is None), path
        if grad is not None:
            assert_agree(on_cpu(actual[path]), grad, path)
