"""Gradients of random programs equal those of plain Python, and are None in the same places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, reject, settings

from penstock.testing.expressions import WEIGHT
from penstock.testing.plain import UnsuitableError
from tests.properties.test_random_programs import case_of, programs_with_instances
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.table import Case
from tests.semantics.ways import WAYS, around


@pytest.fixture(scope="module", autouse=True)
def _trained_weight():
    """The matrix in the programs asks for a gradient."""
    WEIGHT.requires_grad_()
    yield
    WEIGHT.requires_grad_(False)


def with_gradients(case: Case) -> Case:
    """The case with inputs of its own that ask for gradients."""
    rows = [
        tuple(leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in row)
        for row in case.instances
    ]
    asking = Case(case.plain, case.traced, rows, {"weight": WEIGHT}, case.python)
    ask_for_gradients(asking)
    return asking


def plain_gradients(case):
    try:
        outputs = WAYS["plain"](case)
    except UnsuitableError:
        reject()
    leaves = [leaf for row in outputs for leaf in (row if isinstance(row, tuple) else (row,))]
    return gradients(case, outputs) if any(leaf.requires_grad for leaf in leaves) else None


def reads_empty_sequences(case):
    """What is read for empty results only has no gradient, where plain Python gives zeros."""
    return any(
        isinstance(leaf, torch.Tensor) and not leaf.numel()
        for row in case.instances
        for leaf in row
    )


#: Differentiated blocks take long to build: few examples, unless many are asked for.
FEW = 12 if settings().max_examples < 100 else settings().max_examples


@pytest.mark.parametrize(
    "way",
    [
        "map",
        "map_tiny_lookahead",
        "map_windows",
        "map_strips",
        "swapped",
        "recomputed",
        "divided",
        "map_partitioned",
    ],
)
@settings(report_multiple_bugs=False, max_examples=FEW)
@given(drawn=programs_with_instances())
def test_gradients_of_random_programs_agree_with_plain_python(way, drawn):
    case = with_gradients(case_of(*drawn))
    expected = plain_gradients(case)
    if expected is None:
        return
    with around(way):
        actual = gradients(case, WAYS[way](case))
    for path, grad in expected.items():
        if grad is None:
            assert actual[path] is None, path
        elif actual[path] is None:
            assert reads_empty_sequences(case), path
            assert not grad.any(), path
        else:
            assert_agree(actual[path], grad, path)
