"""Every program of the table gives one answer, whichever way it runs, and leaves nothing behind: no
row, no slot, no array.
"""

from unittest.mock import patch

import pytest
import torch

from penstock.ir.graph import Block
from penstock.passes.pipeline import program_to_graph
from penstock.run import distinct
from penstock.run.native.choice import is_closed_loop
from tests.inside import assert_no_leak, collected_machines
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import (
    NOT_LOOKED_INTO,
    ONLY_TAPED,
    RECORDED,
    WAYS,
    WITH_CLOSED_LOOPS,
    WITH_WHOLE_NUMBERS,
    WITH_WINDOWS,
    WITHOUT_GRAPH,
    case_for,
    run_plain,
    ways_for,
)

ENTRIES = [(name, dtype) for name, program in PROGRAMS.items() for dtype in program.dtypes]
DIFFERENTIABLE = [name for name, program in PROGRAMS.items() if program.differentiable]

by_entry = pytest.mark.parametrize(
    ("name", "dtype"), ENTRIES, ids=[f"{name}-{str(dtype)[6:]}" for name, dtype in ENTRIES]
)


CALLS = [
    pytest.param(name, dtype, way, id=f"{name}-{str(dtype)[6:]}-{way}")
    for name, dtype in ENTRIES
    for way in ways_for(name, "plain", *ONLY_TAPED)
]


@pytest.mark.parametrize(("name", "dtype", "way"), CALLS)
def test_values_agree_with_plain_python_and_nothing_is_left(name, dtype, way):
    case = case_for(name, dtype, way)
    with torch.no_grad():
        expected, actual = run_plain(case), WAYS[way](case)
    assert len(actual) == len(expected) == len(case.instances)
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(left, right, f"instance {number}")
    if way not in (*WITHOUT_GRAPH, *RECORDED, *NOT_LOOKED_INTO):
        with torch.no_grad(), collected_machines() as machines:
            WAYS[way](case)
        assert_no_leak(machines)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_loops_that_run_as_native_code_are_known(name):
    case = PROGRAMS[name].case(PROGRAMS[name].dtypes[0])
    graph = case.traced.graph(*case.instances[0])
    operations = [node.operation for context in graph.contexts for node in context.nodes]
    closed = [item for item in operations if isinstance(item, Block) and is_closed_loop(item)]
    assert bool(closed) == (name in WITH_CLOSED_LOOPS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_loops_that_run_in_windows_are_known(name):
    case = PROGRAMS[name].case(PROGRAMS[name].dtypes[0])
    program = case.traced.program(*case.instances[0])
    plain, wide = (program_to_graph(program, closes_loops=["cpu"], opens_windows=w) for w in (0, 1))
    assert (len(wide.contexts) > len(plain.contexts)) == (name in WITH_WINDOWS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_whose_rows_may_be_shared_are_known(name):
    case, is_shared = PROGRAMS[name].case(PROGRAMS[name].dtypes[0]), []

    def find(run, step):
        is_shared.append(bool(step.block.sharing.whole_numbers))

    with torch.no_grad(), patch.object(distinct, "find_distinct", find):
        WAYS["map"](case)
    assert any(is_shared) == (name in WITH_WHOLE_NUMBERS)


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
