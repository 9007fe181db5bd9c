"""Random eager programs over trees give what the plain loop gives."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, reject, settings
from torch import nn

from tests.existing_code.harness import (
    WAYS,
    Maker,
    assert_same,
    assert_same_gradient,
    plainly,
    weighted_sum,
)
from tests.existing_code.random_programs import (
    SIZE,
    Tree,
    UnsuitableError,
    Weights,
    forests,
    programs,
    run_program,
)

CHANGED = "modified by an inplace operation"


def tree_of(form, make):
    return Tree(make.tensor(SIZE), [tree_of(child, make) for child in form])


def states_of(tree):
    return [tree.state, *(state for child in tree.children for state in states_of(child))]


@cache
def shared_weights():
    """No program changes them, so that all examples share what is built for them."""
    make = Maker(1)
    layer, cell = make.module(nn.Linear(SIZE, SIZE)), make.module(nn.GRUCell(SIZE, SIZE))
    return Weights(make.tensor(SIZE, SIZE), layer, cell), make.leaves


def run(way, program, shapes):
    """Outputs, the states left on all nodes, and gradients; None where torch refuses these."""
    make = Maker()
    weights, leaves = shared_weights()
    trees = [tree_of(form, make) for form in shapes]
    outputs = way(lambda tree: run_program(program, weights, tree), trees)
    states = [state for tree in trees for state in states_of(tree)]
    total = weighted_sum([*outputs, *states])
    if total is None:
        return [*outputs, *states], None
    try:
        grads = torch.autograd.grad(total, [*leaves, *make.leaves], allow_unused=True)
    except RuntimeError as error:
        if CHANGED not in str(error):
            raise
        grads = None
    return [*outputs, *states], grads


def plain_run(program, shapes):
    try:
        outputs, grads = run(plainly, program, shapes)
    except UnsuitableError:
        reject()
    if not all(output.detach().abs().max() < 1e6 for output in outputs):
        reject()
    return outputs, grads


@pytest.mark.parametrize("way", WAYS)
@settings(report_multiple_bugs=False, print_blob=False)
@given(program=programs, shapes=forests)
def test_random_eager_programs_agree_with_the_plain_loop(way, program, shapes):
    expected, expected_grads = plain_run(program, shapes)
    found, grads = run(WAYS[way], program, shapes)
    for mine, wanted in zip(found, expected, strict=True):
        assert_same(mine + 0, wanted + 0)
    if expected_grads is not None and grads is not None:
        for mine, wanted in zip(grads, expected_grads, strict=True):
            assert_same_gradient(mine, wanted, 1e-8)
