"""Gradients of every differentiable program of the table equal those of the plain program."""

import pytest
import torch

from tests.semantics.agreement import assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WAYS, WITHOUT_GRAPH, around, case_for, run_plain, ways_for

CALLS = [
    (name, way)
    for name, program in PROGRAMS.items()
    if program.differentiable
    for way in ways_for(name, *WITHOUT_GRAPH)
]


@pytest.mark.parametrize(("name", "way"), CALLS)
def test_gradients_agree_with_plain_python(name, way):
    case = case_for(name, torch.float64, way, with_gradients=True)
    expected = gradients(case, run_plain(case))
    with around(way):
        actual = gradients(case, WAYS[way](case))
    assert any(grad is not None for grad in expected.values())
    for path, grad in expected.items():
        if grad is None:
            assert actual[path] is None, path
        else:
            assert_agree(actual[path], grad, path)
