"""Random programs leave nothing behind, and are planned the same way twice."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings

from tests.inside import assert_no_leak, collected_machines
from tests.properties.test_random_programs import case_of, plain_outputs, programs_with_instances
from tests.semantics.ways import WAYS


@pytest.mark.parametrize("way", ["map", "map_tiny_lookahead"])
@settings(report_multiple_bugs=False)
@given(drawn=programs_with_instances())
def test_nothing_is_left_of_a_random_program(way, drawn):
    case = case_of(*drawn)
    plain_outputs(case)  # rejects what is too long
    with torch.no_grad(), collected_machines() as machines:
        WAYS[way](case)
    assert_no_leak(machines)


@settings(report_multiple_bugs=False, max_examples=20)
@given(drawn=programs_with_instances())
def test_a_random_program_is_planned_the_same_way_twice(drawn):
    program, rows = drawn
    plain_outputs(case_of(program, rows))
    columns = [list(column) for column in zip(*rows, strict=True)]
    first, second = (case_of(program, rows).traced.schedule(*columns) for _ in range(2))
    assert first.digest() == second.digest()
    assert pickle.loads(pickle.dumps(first)).digest() == first.digest()
