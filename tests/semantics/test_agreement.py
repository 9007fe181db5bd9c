"""Every program of the table gives one answer, whichever way it runs."""

import pytest
import torch

from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import ONLY_TAPED, WAYS, run_plain

ENTRIES = [(name, dtype) for name, program in PROGRAMS.items() for dtype in program.dtypes]
DIFFERENTIABLE = [name for name, program in PROGRAMS.items() if program.differentiable]

by_entry = pytest.mark.parametrize(
    ("name", "dtype"), ENTRIES, ids=[f"{name}-{str(dtype)[6:]}" for name, dtype in ENTRIES]
)


@by_entry
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("plain", *ONLY_TAPED)])
def test_values_agree_with_plain_python(name, dtype, way):
    case = PROGRAMS[name].case(dtype)
    with torch.no_grad():
        expected, actual = run_plain(case), WAYS[way](case)
    assert len(actual) == len(expected) == len(case.instances)
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(left, right, f"instance {number}")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_eager_gradients_agree_with_plain_python(name):
    case = PROGRAMS[name].case(torch.float64)
    ask_for_gradients(case)
    expected = gradients(case, run_plain(case))
    actual = gradients(case, WAYS["eager"](case))
    assert any(grad is not None for grad in expected.values())
    for path, grad in expected.items():
        if grad is None:
            assert actual[path] is None, path
        else:
            assert_agree(actual[path], grad, path)


@by_entry
def test_instances_are_few_and_the_same_for_the_same_seed(name, dtype):
    program = PROGRAMS[name]
    assert_agree(program.case(dtype).instances, program.case(dtype).instances, name)
    assert 6 <= len(program.case(dtype, seed=1).instances) <= 12
