"""Compiled launches and halves follow memory policies: pages come and go as with plain ones."""

from __future__ import annotations

import pytest
import torch

from tests.fused import fused_without_compiler
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WAYS, run_plain

NAMES = [name for name, program in PROGRAMS.items() if program.differentiable][::4]


@pytest.mark.parametrize("way", ["swapped", "recomputed"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_agree_with_plain_python(name, way):
    case = PROGRAMS[name].case(torch.float64)
    ask_for_gradients(case)
    expected = gradients(case, run_plain(case))
    with fused_without_compiler():
        for each in (way, "map", way):  # on the way back that another policy has found
            actual = gradients(case, WAYS[each](case))
            for path, grad in expected.items():
                if grad is None:
                    assert actual[path] is None, path
                else:
                    assert_agree(actual[path], grad, path)
