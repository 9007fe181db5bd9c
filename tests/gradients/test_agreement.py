"""Gradients of every differentiable program of the table equal those of the plain program."""

import pytest
import torch

from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WAYS, WITHOUT_GRAPH, run_plain

DIFFERENTIABLE = [name for name, program in PROGRAMS.items() if program.differentiable]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in WITHOUT_GRAPH])
def test_gradients_agree_with_plain_python(name, way):
    case = PROGRAMS[name].case(torch.float64)
    ask_for_gradients(case)
    expected = gradients(case, run_plain(case))
    actual = gradients(case, WAYS[way](case))
    assert any(grad is not None for grad in expected.values())
    for path, grad in expected.items():
        if grad is None:
            assert actual[path] is None, path
        else:
            assert_agree(actual[path], grad, path)
