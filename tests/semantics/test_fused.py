"""Every program of the table gives one answer when its launches are whole: operands gathered and
results written by the code of the launch. The compiler itself is tested elsewhere: here it gives
back what it is given.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.fused import fused_without_compiler
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WAYS, run_plain


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    with fused_without_compiler():
        yield


@pytest.mark.parametrize("way", ["map", "recorded_map"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_agree_with_plain_python(name, way):
    program = PROGRAMS[name]
    case = program.case(program.dtypes[0])
    with torch.no_grad():
        expected = run_plain(case)
        for _ in range(2):  # the second call may find a plan
            assert_agree(WAYS[way](case), expected, name)
    if program.differentiable:
        is_double = program.dtypes[0] == torch.float64
        assert_gradients_agree(case if is_double else program.case(torch.float64), way)


def assert_gradients_agree(case, way):
    ask_for_gradients(case)
    expected = gradients(case, run_plain(case))
    for _ in range(2):
        actual = gradients(case, WAYS[way](case))
        for path, grad in expected.items():
            if grad is None:
                assert actual[path] is None, path
            else:
                assert_agree(actual[path], grad, path)
